"""hub_reference.py: answers of the installed version of transformers about folders of models, for hub_differential.py.

One JSON object a line on stdin, one on stdout:

    {"make": CONFIG, "file": FILE}          makes a model of CONFIG with random weights of deviation 0.3, and writes them
                                            to FILE (safetensors): {"tensors": {NAME: SHAPE}}
    {"load": FOLDER, "tokens": [[…], …]}    loads FOLDER in fp32: {"loss": …, "missing": […], "unexpected": […],
                                            "mismatched": […], "tied": […]}

An exception of transformers is the answer {"error": TEXT}.
"""
import json
import logging
import math
import os
import sys
import warnings

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
os.environ["HF_HUB_OFFLINE"] = "1"
warnings.simplefilter("ignore")

import torch
import transformers
from safetensors.torch import save_file

logging.disable(logging.CRITICAL)
transformers.logging.set_verbosity(50)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def make(config, file):
    text = dict(config)
    kind = transformers.CONFIG_MAPPING[text.pop("model_type")]
    model = transformers.AutoModelForCausalLM.from_config(kind.from_dict(text), attn_implementation="eager")
    tensors = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if not isinstance(weight, torch.nn.Parameter):
            continue
        values = torch.randn(weight.shape) * 0.3
        is_gain = weight.dim() == 1 and name.endswith("weight") and not config["model_type"].startswith("gemma")
        tensors[name] = values + 1 if is_gain else values
    save_file(tensors, file, {"format": "pt"})
    return {"tensors": {name: list(values.shape) for name, values in tensors.items()}}


def load(folder, tokens):
    model, facts = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, local_files_only=True)
    model.eval()
    ids = torch.tensor(tokens)
    with torch.no_grad():
        logits = model(ids, return_dict=True).logits.double()
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).item()
    return {"loss": loss if math.isfinite(loss) else None,
            **{key: sorted(map(str, facts.get(key + "_keys", ()))) for key in ("missing", "unexpected", "mismatched")}}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of libraries
    print(json.dumps({"version": transformers.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        torch.manual_seed(request.get("seed", 0))
        try:
            answer = make(request["make"], request["file"]) if "make" in request else \
                load(request["load"], request["tokens"])
        except Exception as error:  # any failure of the library is an answer
            answer = {"error": f"{type(error).__name__}: {error}"[:400]}
        print(json.dumps(answer), file=answers, flush=True)


main()
