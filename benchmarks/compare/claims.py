"""SAMO's claims (Singh and Bhatele, IPDPS 2023) beside the same quotients here.

The paper's speed-up is (t of the other - t of SAMO) / t of the other, on up to 2,048 V100s with models of 1.3 to 13
billion parameters. Here the model is small and the machine one, so only quotients are comparable.
"""


def saved(base, other):
    """(base - other) / base, or None where one is missing."""
    return None if base is None or other is None or base == 0 else (base - other) / base


def median(rows, name, key):
    row = rows.get(name)
    value = row.get(key) if row and row["status"] == "ok" else None
    return value["median"] if value else None


def fastest(rows, names):
    """The name with the shortest median step, or None."""
    known = [name for name in names if median(rows, name, "step_ms") is not None]
    return min(known, key=lambda name: median(rows, name, "step_ms")) if known else None


def _step(rows, base, other):
    return saved(median(rows, base, "step_ms"), median(rows, other, "step_ms"))


def _waiting(rows, base, other):
    """The saving in the time of a step that rank 0 waits for others, as a share of the base's step (the paper's quotient)."""
    shares = [median(rows, name, "waiting_share") for name in (base, other)]
    steps = [median(rows, name, "step_ms") for name in (base, other)]
    if None in shares or None in steps:
        return None
    return (shares[0] * steps[0] - shares[1] * steps[1]) / steps[0]


def claims(table):
    """[{"claim", "paper", "parts": [(what, quotient or None)], "note"}]"""
    rows = {row["name"]: row for row in table}
    deepspeed = fastest(rows, ["zero-0", "zero-1", "zero-2", "deepspeed-pipeline", "deepspeed-pipeline-zero-1"]) or "zero-1"
    ddp = fastest(rows, ["ddp", "ddp-compiled"]) or "ddp"
    title = lambda name: rows[name]["title"] if name in rows else name

    def state(base, other):
        return saved(median(rows, base, "state_bytes_per_parameter"), median(rows, other, "state_bytes_per_parameter"))

    return [
        {"claim": "memory, against dense training", "paper": 0.74,
         "parts": [("model state, SAMO storage against Espalier dense", state("espalier-dense", "espalier-samo")),
                   ("model state, sparse products and 8-bit states", state("espalier-dense", "espalier-sparse-8bit")),
                   ("model state, SAMO storage against DDP dense masked", state("ddp-masked", "espalier-samo")),
                   ("peak memory of the fuller rank, SAMO storage against Espalier dense",
                    saved(median(rows, "espalier-dense", "peak_bytes"), median(rows, "espalier-samo", "peak_bytes")))],
         "note": "the paper's number is memory in use by GPT-3 2.7B; peak memory here holds program and libraries too"},
        {"claim": "communication time, as a share of a dense step", "paper": 0.40,
         "parts": [("waiting for others, SAMO storage", _waiting(rows, "espalier-dense", "espalier-samo")),
                   ("waiting for others, pipeline", _waiting(rows, "espalier-pipeline", "espalier-pipeline-sparse")),
                   ("bytes a step, SAMO storage", saved(median(rows, "espalier-dense", "sent_bytes"),
                                                        median(rows, "espalier-samo", "sent_bytes"))),
                   ("bytes a step, with 4-bit gradients", saved(median(rows, "espalier-dense", "sent_bytes"),
                                                                median(rows, "espalier-sparse-codec", "sent_bytes")))],
         "note": "call with --link for a link that takes time; the share of bytes does not depend on it"},
        {"claim": "step time, against the same framework dense (AxoNN in the paper)", "paper": 0.34,
         "parts": [("SAMO storage", _step(rows, "espalier-dense", "espalier-samo")),
                   ("sparse products", _step(rows, "espalier-dense", "espalier-sparse")),
                   ("pipeline, sparse products", _step(rows, "espalier-pipeline", "espalier-pipeline-sparse")),
                   ("pipeline of 2 replicas, sparse products",
                    _step(rows, "espalier-pipeline-replicas", "espalier-pipeline-replicas-sparse"))],
         "note": "the paper's gain comes from fewer stages: benchmarks/steps/stages.sh measures that"},
        {"claim": "step time, against DeepSpeed", "paper": 0.32,
         "parts": [(f"Espalier sparse against {title(deepspeed)}", _step(rows, deepspeed, "espalier-sparse")),
                   (f"Espalier pipeline, sparse, against {title('deepspeed-pipeline')}",
                    _step(rows, "deepspeed-pipeline", "espalier-pipeline-sparse")),
                   (f"Espalier pipeline, 2 replicas, sparse, against {title('deepspeed-pipeline-zero-1')}",
                    _step(rows, "deepspeed-pipeline-zero-1", "espalier-pipeline-replicas-sparse")),
                   (f"Espalier sparse against {title(ddp)}", _step(rows, ddp, "espalier-sparse"))],
         "note": "all at one size of the model, the fastest DeepSpeed row"},
        {"claim": "step time of SAMO, against training with sparse kernels (Sputnik)", "paper": 0.46,
         "parts": [("SAMO storage against Espalier's sparse products", _step(rows, "espalier-sparse", "espalier-samo")),
                   ("SAMO storage against DDP dense masked", _step(rows, "ddp-masked", "espalier-samo"))],
         "note": "negative: here sparse kernels are the faster way; other sparse kernels, a layer alone: docs/sparse.md"},
    ]
