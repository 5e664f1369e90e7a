#!/usr/bin/env python3
"""commands_test.py ROOT PROGRAM: calls of the program in pages, scripts, configs and comments must mean something today.

Reads options from `PROGRAM … --help`, config keys and their choices from `PROGRAM info --config-help`. Checks:

- Subcommands and options exist; values of options and of `--set` are among the choices, if these are listed.
- Config keys exist: SECTION.KEY=VALUE in shell code, and strings "SECTION.KEY" in Python.
- The output of `export` is a file if its name ends in .h5 or .hdf5, else a folder: no other name of a file.
- `train CONFIG --set …` with a config of the repository in a page is run with --dry-run.

Python calls are lists or arguments that hold the subcommand as a string. Words with variables or placeholders are skipped.
"""
import ast
import concurrent.futures
import pathlib
import re
import shlex
import subprocess
import sys

ROOT, PROGRAM = pathlib.Path(sys.argv[1]).resolve(), str(pathlib.Path(sys.argv[2]).resolve())
SKIPPED = {".git", "results", "golden", "__pycache__", ".venv"}
OTHERS = {"git", "cmake", "ctest"}  # have subcommands of the same names
HISTORY = {"CHANGELOG.md"}  # names what older versions had
PLACEHOLDER = re.compile(r"[$<>{}*…|]|^[A-Z][A-Z_0-9.]*$|\b[A-Z]{3,}\b|=[A-Z]$")
ENDS_OF_FILES = set("h5 hdf5 bin safetensors json jsonl txt toml out log html tmp md csv svg py sh cpp h png trace".split())
END_OF_COMMAND = re.compile(r"\n|`|\s#|\s\||;|&&|\s\d?>|\)(?=\s|$)")


def output(*arguments):
    done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"espalier {' '.join(arguments)} ended with {done.returncode}:\n{done.stderr}")
    return done.stdout


class Command:
    """Options of a subcommand, from its help: {name: (takes a value, choices or None)}."""

    def __init__(self, *words):
        self.words, self.options = words, {}
        text = output(*words, "--help")
        for match in re.finditer(r"^ +((?:-\w,)?(?:--[\w-]+,?)+|-\w)( \S+(?: \.\.\.| \S+)*?)?(?:  +(.*))? *$", text, re.M):
            kind, described = (match[2] or "").strip(), match[3] or ""
            listed = re.search(r"\{([^}]*)\}", kind)
            choices = listed[1].split(",") if listed else None
            if re.fullmatch(r"[\w-]+(, [\w-]+){2,}", described):
                choices = described.split(", ")
            for name in match[1].split(","):
                self.options[name] = (bool(kind), choices)
        part = text.partition("\nSubcommands:\n")[2].partition("\n\n")[0]
        self.subcommands = re.findall(r"^  ([a-z][\w-]*)", part, re.M)


def commands():
    """{"train": Command, "data tokenize": Command, …}"""
    found = {}
    for name in Command().subcommands:
        found[name] = Command(name)
        for inner in found[name].subcommands:
            found[f"{name} {inner}"] = Command(name, inner)
    return found


def config_keys():
    """{"section.key": choices or None}"""
    found, section, key = {}, "", None
    for line in output("info", "--config-help").splitlines():
        if match := re.match(r"\[(\w+)\]", line):
            section = match[1]
        elif match := re.match(r"  (\w+) = ", line):
            key = f"{section}.{match[1]}"
            found[key] = None
        elif key and (match := re.match(r'    "([^"]+)"', line)):
            found[key] = (found[key] or []) + [match[1]]
    return found


COMMANDS, KEYS = commands(), config_keys()
SECTIONS = "|".join(sorted({key.partition(".")[0] for key in KEYS}))
NAMES = "|".join(sorted((name for name in COMMANDS if " " not in name), key=len, reverse=True))
CALL = re.compile(r"(?:\bespalier|\"?\$\{?(?:program|espalier|PROGRAM|ESPALIER)\}?\"?)[ \t]+(?=(?:" + NAMES + r")(?![\w-]))")
SHELL_KEY = re.compile(r"(?<![\w./$\"-])[\"']?((?:" + SECTIONS + r")\.([a-z_0-9]+))=")


def wrong_setting(text):
    key, equals, value = text.partition("=")
    if PLACEHOLDER.search(key) or key == "section.key" or not equals:
        return None
    if key not in KEYS:
        return f"no config key {key}"
    value = value.strip().strip('"')
    if KEYS[key] and re.fullmatch(r"[\w-]+", value) and not PLACEHOLDER.search(value) and value not in KEYS[key]:
        return f"{key} takes one of {', '.join(KEYS[key])}, not {value}"
    return None


def wrong_export(name):
    end = pathlib.PurePath(name).suffix.lstrip(".")
    if end in ENDS_OF_FILES - {"h5", "hdf5"}:
        return f"the output {name} of export becomes a folder: a file's name ends in .h5"
    return None


def wrong_words(words):
    """Mistakes of a call: the words after the program."""
    name = " ".join(words[:2]) if " ".join(words[:2]) in COMMANDS else words[0]
    command, mistakes = COMMANDS[name], []
    words = words[len(name.split()):]
    i = 0
    while i < len(words):
        word = words[i]
        i += 1
        if word == "--":
            break
        if not re.match(r"--?[a-zA-Z]", word):
            continue
        option, equals, value = word.rstrip(".,:;").partition("=")
        if PLACEHOLDER.search(option):
            continue
        if option not in command.options:
            mistakes.append(f"{name} has no option {option}")
            continue
        takes, choices = command.options[option]
        if takes and not equals and i < len(words):
            value = words[i]
            i += 1
        if choices and value and not PLACEHOLDER.search(value) and value not in choices:
            mistakes.append(f"{name} {option} takes one of {', '.join(choices)}, not {value}")
        if option == "--set":
            mistakes.append(wrong_setting(value))
        if name == "export" and option in ("-o", "--out"):
            mistakes.append(wrong_export(value))
    return [mistake for mistake in mistakes if mistake]


def calls_in(text):
    """(line number, words) of calls in text; lines that end in a backslash are joined."""
    joined = re.sub(r"\\\n", lambda m: "\0\1", text)  # as long as before
    for match in CALL.finditer(joined):
        rest = joined[match.end():match.end() + 4000]
        end = END_OF_COMMAND.search(rest)
        call = re.sub("\0\1[ \t]*(?:#|//)?", " ", rest[:end.start()] if end else rest)
        try:
            words = shlex.split(call)
        except ValueError:  # a quote that the text opened before the call
            words = [word.strip("\"',") for word in call.split()]
        if words and words[0] in COMMANDS:
            yield text.count("\n", 0, match.start()) + 1, words


def string_of(node):
    """The last string in an expression, which has the end of a file's name."""
    strings = [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return strings[-1] if strings else None


def items_of(node):
    """The items of a list, a tuple, or a sum of them; the arguments of a call."""
    if isinstance(node, (ast.List, ast.Tuple)):
        return node.elts
    if isinstance(node, ast.Call):
        return node.args
    if isinstance(node, ast.BinOp):
        return items_of(node.left) + (items_of(node.right) if isinstance(node.op, ast.Add) else [])
    return []


def calls_of_python(tree):
    """(line number, command, options, node of the output) of lists, tuples and arguments that call the program."""
    for node in ast.walk(tree):
        items = items_of(node)
        for i, item in enumerate(items):
            name = item.value if isinstance(item, ast.Constant) else None
            if not isinstance(name, str) or name not in COMMANDS:
                continue
            options = [(j, one.value) for j, one in enumerate(items) if j > i and isinstance(one, ast.Constant)
                       and isinstance(one.value, str) and re.match(r"--?[a-z]", one.value)]
            before = ast.unparse(items[i - 1]).lower() if i > 0 else ""
            if not (options or "program" in before or "espalier" in before) or ast.unparse(items[0]).strip("'") in OTHERS:
                continue
            second = items[i + 1].value if i + 1 < len(items) and isinstance(items[i + 1], ast.Constant) else ""
            full = f"{name} {second}" if f"{name} {second}" in COMMANDS else name
            out = next((items[j + 1] for j, option in options if option in ("-o", "--out") and j + 1 < len(items)), None)
            yield item.lineno, full, [option for _, option in options], out
            break


def mistakes_of_python(text):
    """(number of calls, [(line number, mistake)])"""
    mistakes = []
    tree = ast.parse(text)
    calls = list(calls_of_python(tree))
    for line, name, options, out in calls:
        for option in options:
            if option.partition("=")[0] not in COMMANDS[name].options:
                mistakes.append((line, f"{name} has no option {option}"))
        if name == "export" and out is not None and (found := string_of(out)) and (wrong := wrong_export("x" + found)):
            mistakes.append((line, wrong))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if match := re.fullmatch(f"({SECTIONS})\\.([a-z_0-9]+)", node.value):
                if node.value not in KEYS and match[2] not in ENDS_OF_FILES:
                    mistakes.append((node.lineno, f"no config key {node.value}"))
    return len(calls), mistakes


def dry_run(words):
    """The error of `train CONFIG` in a dry run, without options of a real run."""
    settings = [part for word, value in zip(words, words[1:]) if word == "--set" for part in ("--set", value)]
    done = subprocess.run([PROGRAM, "train", words[1], *settings, "--dry-run"], cwd=ROOT, capture_output=True, text=True)
    return None if done.returncode == 0 else f"espalier {shlex.join(words)}: {done.stderr.strip()}"


def files():
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if not path.is_file() or SKIPPED & set(parts) or re.match(r"build|runs$|data$|shared$", parts[0]):
            continue
        if path.name not in HISTORY and (path.suffix in (".md", ".sh", ".py", ".toml", ".sbatch", ".txt") or
                                         path.suffix in (".h", ".cpp") and parts[0] in ("src", "benchmarks", "examples")):
            yield path


def main():
    mistakes, checked, runs = [], 0, {}
    for path in files():
        text = path.read_text(encoding="utf-8", errors="replace")
        place = path.relative_to(ROOT)
        if place.parts[0] == "tests" and path.suffix != ".py" or path.name in ("commands_test.py", "cli_test.py"):
            continue
        found = []
        for line, words in calls_in(text):
            checked += 1
            found += [(line, mistake) for mistake in wrong_words(words)]
            if (path.suffix == ".md" and words[0] == "train" and len(words) > 1 and (ROOT / words[1]).is_file()
                    and not any(PLACEHOLDER.search(word) for word in words)):
                runs.setdefault(tuple(words), (place, line))
        if path.suffix == ".py":
            count, more = mistakes_of_python(text)
            checked, found = checked + count, found + more
        elif path.suffix in (".sh", ".sbatch"):
            for match in SHELL_KEY.finditer(text):
                if match[1] not in KEYS and match[2] not in ENDS_OF_FILES:
                    found.append((text.count("\n", 0, match.start()) + 1, f"no config key {match[1]}"))
        mistakes += [f"{place}:{line}: {mistake}" for line, mistake in found]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for words, wrong in zip(runs, pool.map(dry_run, runs)):
            if wrong:
                mistakes.append(f"{runs[words][0]}:{runs[words][1]}: {wrong}")
    print(f"{checked} calls checked, {len(runs)} of them by a dry run")
    for mistake in mistakes:
        print(mistake)
    if checked < 250:
        sys.exit(f"only {checked} calls were found: the search is broken")
    sys.exit(bool(mistakes))


main()
