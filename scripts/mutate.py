#!/usr/bin/env python3
"""Mutation testing: makes small faults in sources and reports which of them no test detects.

    scripts/mutate.py BUILD FILE... [--sample N] [--seed S] [--results OUT.jsonl] [--list]
    scripts/mutate.py BUILD --again OUT.jsonl [--only ID...] [--with PROGRAM=FILTER]

Changes sources of this checkout in place, one mutant at a time, and restores them: run it in a
clone of its own, and leave that clone alone meanwhile. BUILD is a build folder of it, configured
with -DESPALIER_TESTS=ON and without ESPALIER_WERROR (mutants may have unused variables).

Each mutant runs through the programs and suites of STAGES, the fastest first, until a test fails or
a stage exceeds five times the time that it took without a mutant. Verdicts:

  killed            a test failed, or a stage ran out of time
  survived          all tests passed: the mutant is equivalent, or a test is missing
  does not compile  not counted

A draw picks a file by its number of lines, then an operator, then a place, all from the seed.
--again repeats the survivors of an earlier run, after tests were added; --with runs only these tests
of a program, instead of the stages. A line is printed per mutant and written to OUT.jsonl (mutants
that it has already are left out), at the end a table per file.
"""
import argparse
import collections
import dataclasses
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LATE = ":".join(["*ValueCodec*", "*RoundedRuns*", "*CodedRuns*", "*CodedValue*", "*MaskChangeWays*", "*Resumed*",
                 "*Learning*", "*StartsPruned*", "*OptimizerRuns*", "*Adaprec*", "*AdaPrec*", "*Budget*",
                 "*Ledger*", "*MaskChange*", "*Layout*", "*LossScaleRuns*"])
FIRST = "Ways/Zero.*:*Ranks*:Equality*:Manifest*:Check*:LossScale.*:StateCheck*:Part.*:ZeroMemory*:Async.*"
# Prefix of a source: (target and program, arguments), in order.
TRAIN = [("train_tests", f"--gtest_filter={FIRST}-{LATE}"), ("train_tests", f"--gtest_filter=*-{FIRST}:{LATE}"),
         ("train_tests", f"--gtest_filter={LATE}"), ("cli_tests", "--gtest_filter=*"),
         ("simulation_tests", "--gtest_filter=*")]
STAGES = {
    "io/": [("io_tests", "--gtest_filter=-*FailingFiles*:*FullDisk*:*Crash*:*LargeFile*"),
            ("train_tests", "--gtest_filter=Ways/Zero.*:Manifest*:Check*:RoundedState*"),
            ("io_tests", "--gtest_filter=*FailingFiles*:*FullDisk*:*Crash*"), ("cli_tests", "--gtest_filter=*"),
            ("fuzz_tests", "--gtest_filter=*")],
    "src/train/": TRAIN,
}
PROGRAMS_NEED_ESPALIER = {"cli_tests"}
# By a part of a source's path: the stage that runs before those of STAGES.
NEAREST = {
    "pipeline_reduction": ("device_tests", "--gtest_filter=PipelineReduction*"),
    "run/pipeline": ("train_tests", "--gtest_filter=*Types.R*/0:Pipeline.Grid*:Pipeline.*Stages:Async.R*"),
    "state_check": ("train_tests", "--gtest_filter=StateCheck*"),
    "agreement": ("train_tests", "--gtest_filter=CompareRanks*:ManifestOfRanks*:ZeroLost*"),
    "manifest": ("train_tests", "--gtest_filter=ManifestText*:Check*:Manifest*"),
    "shards": ("train_tests", "--gtest_filter=ZeroMemory*:ZeroSums*:CompareRanks*:Ways/Zero*/0"),
    "loss_scale": ("train_tests", "--gtest_filter=LossScale*"),
    "gradient_timeline": ("device_tests", "--gtest_filter=GradientTimeline*"),
    "reduction_timer": ("device_tests", "--gtest_filter=ReductionTimer*"),
    "replica_route": ("train_tests", "--gtest_filter=*Types.Threads*:Numbers/Ranks*:CodedRuns.Keep*"),
    "data_parallel": ("train_tests", "--gtest_filter=*Types.Threads*:Numbers/Ranks*:Async.Rep*:CodedRuns.Ad*"),
    "summary": ("cli_tests", "--gtest_filter=Cli.*:CliManifest.Is*"),
    "run_directory": ("cli_tests", "--gtest_filter=CliSurvival*"),
    "reporter": ("cli_tests", "--gtest_filter=CliSurvival*:Cli.*"),
    "run/setup": ("train_tests", "--gtest_filter=Manifest*:*StartsPruned*/0:*Types*/0"),
    "checkpoint_save": ("train_tests", "--gtest_filter=CheckpointSave*:CheckpointBackground*"),
    "run_plan": ("train_tests", "--gtest_filter=Manifest*:Budget*:Pipeline.R*"),
    "run/steps": ("train_tests", "--gtest_filter=*Types*/0:Async.R*:LossScaleRuns*:CodedRuns.Ada*"),
    "run/source": ("train_tests", "--gtest_filter=Source*:*Types*/0"),
}
LIMIT = 5  # times the time without a mutant
LEAST_LIMIT = 60  # s
MEMORY = 16 << 30  # bytes of a process

FLIPS = {"==": "!=", "!=": "==", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "&&": "||", "||": "&&",
         "+": "-", "-": "+", "*": "/", "/": "*", "%": "/"}


@dataclasses.dataclass
class Mutant:
    file: str
    begin: int
    end: int
    text: str
    operator: str
    line: int = 0
    before: str = ""
    after: str = ""

    @property
    def id(self):
        return f"{self.file}:{self.line}:{self.operator}:{self.begin}"


def masked(text):
    """The text with comments, literals of text and preprocessor lines blanked; offsets stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|(?<!\d)\'(?:\\.|[^\'\\])+\'|^#[^\n]*',
                         re.S | re.M)
    return pattern.sub(lambda found: re.sub(r"[^\n]", " ", found.group()), text)


def closing(code, opening):
    """Index of the bracket that closes the one at `opening`."""
    depth = 0
    for i in range(opening, len(code)):
        depth += code[i] in "([{"
        depth -= code[i] in ")]}"
        if depth == 0:
            return i
    return -1


def conditions(code):
    for found in re.finditer(r"\b(?:if|while) \(", code):
        end = closing(code, found.end() - 1)
        begin = max(code.rfind(";", found.end(), end) + 1, found.end())
        condition = code[begin:end]
        if not re.search(r"(?<![=!<>])=(?!=)", condition):
            yield begin, end, "", "negate condition"


def loops(code):
    for found in re.finditer(r"\bfor \(", code):
        end = closing(code, found.end() - 1)
        brace = code.find("{", end)
        if brace < 0 or code[end + 1:brace].strip():
            continue
        yield brace + 1, brace + 1, " continue;", "skip loop"
        last = closing(code, brace)
        yield last, last, " break; ", "one iteration"


def statements(code):
    """Calls and assignments that stand alone."""
    for found in re.finditer(r"(?<=[;{}:])\s*\n\s*(?=(?:\+\+|--)?[\w*])", code):
        begin = found.end()
        end = begin
        while end < len(code) and code[end] not in ";{}":
            end = closing(code, end) + 1 if code[end] in "([" else end + 1
            if end == 0:
                return
        if code[end:end + 1] == "{":
            end = closing(code, end) + 1
        statement = code[begin:end]
        simple = re.match(r"(?:\+\+|--)?\*?[\w.:]+(?:->[\w.]+|\[[^]]*\]|\(\)\.?)*(?:\(| [-+*/|]?= |$)", statement)
        keyword = re.match(r"(return|throw|if|for|while|switch|case|using|delete|else|do|public|private)\b", statement)
        if simple and not keyword and code[end:end + 1] == ";" and closes_in_function(code, begin):
            yield begin, end, "(void)0", "remove statement"


def closes_in_function(code, at):
    """Whether `at` stands in a body: the innermost open brace follows ')', 'const', 'else' or the like."""
    depth = 0
    for i in range(at - 1, -1, -1):
        if code[i] == "}":
            depth += 1
        elif code[i] == "{":
            if depth == 0:
                return bool(re.search(r"(\)|\bconst|\boverride|\belse|\bdo|\btry|noexcept|:|;|\{)\s*$", code[:i][-60:]))
            depth -= 1
    return False


def members(code):
    """Initialisers of members on a line of their own."""
    for found in re.finditer(r"(?<=\n)( +)\.\w+ = [^\n]*,(?=\n)", code):
        if closing_balanced(found.group()):
            yield found.start(), found.end(), "", "drop member"


def closing_balanced(text):
    return all(text.count(a) == text.count(b) for a, b in ("()", "{}", "[]"))


def tokens(code):
    for found in re.finditer(r" (==|!=|<=|>=|<|>) ", code):
        yield found.start(1), found.end(1), FLIPS[found.group(1)], "comparison"
    for found in re.finditer(r" (&&|\|\|)(?= |\n)", code):
        yield found.start(1), found.end(1), FLIPS[found.group(1)], "and, or"
    for found in re.finditer(r" ([-+*/%]) (?=[\w(])", code):
        yield found.start(1), found.end(1), FLIPS[found.group(1)], "arithmetic"
    for found in re.finditer(r" [-+*/%] (?:\d+|[A-Za-z_][\w.:]*(?:->\w+)*(?:\(\))?)(?=[;,)\n ])", code):
        yield found.start(), found.end(), "", "drop term"
    for found in re.finditer(r" ([-+])= ", code):
        yield found.start(1), found.end(1), FLIPS[found.group(1)], "arithmetic"
    for found in re.finditer(r"(?<![\w!])!(?=[\w(])", code):
        yield found.start(), found.end(), "", "drop not"
    for found in re.finditer(r"(?<![\w.])(\d+)(?![\w.'])", code):
        yield found.start(), found.end(), str(int(found.group()) + 1), "constant"
    for found in re.finditer(r"\b(true|false)\b", code):
        yield found.start(), found.end(), "false" if found.group() == "true" else "true", "constant"
    for found in re.finditer(r"\bstd::(min|max)\b", code):
        yield found.start(1), found.end(1), "max" if found.group(1) == "min" else "min", "min, max"


def mutants_of(file):
    text = (ROOT / file).read_text()
    code = masked(text)
    start = code.find("\nnamespace")  # nothing before it computes
    found = []
    for source in (tokens, conditions, loops, statements, members):
        for begin, end, new, operator in source(code):
            if begin < start:
                continue
            if operator == "negate condition":
                new = f" !({text[begin:end].strip()})"
            line = text.count("\n", 0, begin) + 1
            mutant = Mutant(file, begin, end, new, operator, line)
            mutant.before = " ".join(text[begin - 20 if operator in ("comparison", "arithmetic", "constant") else begin:
                                          end + 20].split())[:100]
            mutant.after = new
            found.append(mutant)
    return found


def draw(files, count, seed):
    pool = {file: collections.defaultdict(list) for file in files}
    for file in files:
        for mutant in mutants_of(file):
            pool[file][mutant.operator].append(mutant)
    lines = [len((ROOT / file).read_text().splitlines()) if pool[file] else 0 for file in files]
    chosen, random_ = {}, random.Random(seed)
    for _ in range(20 * count):
        if len(chosen) == count:
            break
        file = random_.choices(files, lines)[0]
        operator = random_.choice(sorted(pool[file]))
        mutant = random_.choice(pool[file][operator])
        chosen[mutant.id] = mutant
    return list(chosen.values())


def limit_resources():
    """A mutant must not fill the memory of the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def end_session(session):
    """Ends all processes of a session, also those of mpirun, which have process groups of their own."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(process.name)) == session:
                os.kill(int(process.name), signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


class Runner:
    def __init__(self, build, stages, only):
        self.build = pathlib.Path(build)
        self.stages = stages  # None: all
        self.only = only  # (program, arguments), instead of all stages
        self.times = self.build / "mutate-times.json"  # s, by stage, without a mutant
        self.normal = json.loads(self.times.read_text()) if self.times.exists() else {}
        self.environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "MALLOC_PERTURB_": "90"}

    def make(self, target):
        targets = [target] + (["espalier"] if target in PROGRAMS_NEED_ESPALIER else [])
        done = subprocess.run(["cmake", "--build", self.build, "--target", *targets], capture_output=True, text=True,
                              check=False)
        return done.returncode == 0, done.stdout

    def program(self, target):
        return self.build / "tests" / ("device" if target.startswith("device") else "") / target

    def test(self, target, arguments, limit=None):
        """The name of the first test that failed; empty: none."""
        command = [self.program(target), arguments, "--gtest_fail_fast", "--gtest_brief=1"]
        with tempfile.TemporaryFile("w+", errors="replace") as log:  # a pipe may stay open in a process left behind
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment, cwd=ROOT,
                                       start_new_session=True, preexec_fn=limit_resources)
            try:
                process.wait(limit)
            except subprocess.TimeoutExpired:
                return "time limit"
            finally:
                end_session(process.pid)
                process.wait()
            log.seek(0)
            output = log.read()
        if process.returncode == 0:
            return ""
        failed = re.search(r"\[  FAILED  \] ([^\s,]+)", output)
        return failed.group(1) if failed else f"exit code {process.returncode}: {output.strip()[-100:]}"

    def limit(self, stage):
        """Measured without a mutant, once for a build folder."""
        key = " ".join(stage)
        if key not in self.normal:
            made, output = self.make(stage[0])
            if not made:
                sys.exit(f"{stage[0]} does not build:\n{output}")
            begin = time.monotonic()
            failed = self.test(*stage)
            if failed:
                sys.exit(f"{stage}: {failed} fails without a mutant")
            self.normal[key] = time.monotonic() - begin
            self.times.write_text(json.dumps(self.normal, indent=1))
        return max(LIMIT * self.normal[key], LEAST_LIMIT)

    def verdict(self, mutant):
        nearest = [stage for part, stage in NEAREST.items() if part in mutant.file][:1]
        others = next(stages for prefix, stages in STAGES.items() if mutant.file.startswith(prefix))
        stages = [self.only] if self.only else (nearest + others)[:self.stages]
        limits = [self.limit(stage) for stage in stages]
        path = ROOT / mutant.file
        text = path.read_text()
        try:
            path.write_text(text[:mutant.begin] + mutant.text + text[mutant.end:])
            for stage, limit in zip(stages, limits):
                made, output = self.make(stage[0])
                if not made:
                    error = re.search(r"error: ([^\n]*)", output)
                    return "does not compile", error.group(1) if error else ""
                failed = self.test(*stage, limit)
                if failed:
                    return "killed", failed
            return "survived", ""
        finally:
            path.write_text(text)


def table(results):
    counts = collections.defaultdict(collections.Counter)
    for result in results:
        for key in (result["file"], "all"):
            counts[key][result["verdict"]] += 1
    print(f"\n{'file':50} killed  survived  does not compile")
    for file, count in counts.items():
        print(f"{file:50} {count['killed']:6}  {count['survived']:8}  {count['does not compile']:16}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--sample", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", default="mutants.jsonl")
    parser.add_argument("--stages", type=int, help="run only the first so many stages of a mutant")
    parser.add_argument("--with", dest="with_tests", metavar="PROGRAM=FILTER")
    parser.add_argument("--list", action="store_true", help="print the mutants, change nothing")
    parser.add_argument("--again", help="results of an earlier run; runs its survivors again")
    parser.add_argument("--only", nargs="*", default=[], help="with --again: these ids, survivors or not")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # restores the source
    if arguments.again:
        old = [json.loads(line) for line in pathlib.Path(arguments.again).read_text().splitlines()]
        wanted = {result["id"] for result in old
                  if (result["id"] in arguments.only if arguments.only else result["verdict"] == "survived")}
        files = sorted({result["file"] for result in old if result["id"] in wanted})
        mutants = [mutant for file in files for mutant in mutants_of(file) if mutant.id in wanted]
    else:
        mutants = draw(arguments.files, arguments.sample, arguments.seed)
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.id}: {mutant.before}  ->  {mutant.after}")
        return
    done = pathlib.Path(arguments.results)
    known = {json.loads(line)["id"] for line in done.read_text().splitlines()} if done.exists() else set()
    mutants = [mutant for mutant in mutants if mutant.id not in known]
    only = None
    if arguments.with_tests:
        target, tests = arguments.with_tests.split("=", 1)
        only = (target, f"--gtest_filter={tests}")
    runner = Runner(os.path.abspath(arguments.build), arguments.stages, only)
    results = []
    with open(arguments.results, "a", encoding="utf-8") as out:
        for mutant in mutants:
            begin = time.monotonic()
            verdict, by = runner.verdict(mutant)
            result = {"id": mutant.id, **dataclasses.asdict(mutant), "verdict": verdict, "by": by,
                      "seconds": round(time.monotonic() - begin, 1)}
            results.append(result)
            out.write(json.dumps(result) + "\n")
            out.flush()
            print(f"{verdict:9} {mutant.id}: {mutant.before}  ->  {mutant.after}   [{by}]", flush=True)
    table(results)


if __name__ == "__main__":
    main()
