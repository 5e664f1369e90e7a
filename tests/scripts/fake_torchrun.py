"""Stands in for torch.distributed.run: checks the call of a rival of benchmarks/peers and its work order (fake_rival.py), and
writes an invented record. An option that the rival's source does not define is an assertion."""
import json
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import fake_rival  # noqa: E402


def main():
    place = next(i for i, word in enumerate(sys.argv) if word.endswith(".py") and i > 0)
    launcher, script, given = sys.argv[1:place], pathlib.Path(sys.argv[place]), sys.argv[place + 1:]
    ranks = int(launcher[launcher.index("--nproc-per-node") + 1])
    sources = [script, script.parent / "rival.py", script.parent / "ddp.py"]
    known = set(re.findall(r'add_argument\("(--[\w-]+)"', "".join(source.read_text() for source in sources)))
    options = {word: value for word, value in zip(given, [*given[1:], ""]) if word.startswith("--")}
    assert options.keys() <= known, f"{script.name} has no option {sorted(options.keys() - known)}"
    assert script.name in ("rival_ddp.py", "rival_zero.py", "rival_pipeline.py"), script
    work = json.loads(pathlib.Path(options["--work"]).read_text())
    replicas = int(options.get("--replicas", 1)) if script.name == "rival_pipeline.py" else ranks
    assert work["global_batch"] % (replicas * work["micro_batch"]) == 0, (work["global_batch"], ranks, work["micro_batch"])
    loss = fake_rival.check(work, {}, "--masked" in options)
    pathlib.Path(options["--out"]).write_text(json.dumps(fake_rival.record(work, loss)))


main()
