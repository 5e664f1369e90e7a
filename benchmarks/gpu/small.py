"""Training of a model that is small for a GPU."""
from kinds import Steps, write_text


class SmallSteps(Steps):
    """A model so small that the host's calls take longer than the kernels: 6 layers of 384 columns, 8 micro-batches of
    8 x 256 bytes per step."""

    def __init__(self, name, limit, storage, steps):
        super().__init__(name, limit, "6x384", storage, steps)

    def prepare(self, bundle, end):
        super().prepare(bundle, end)
        write_text(bundle.scratch / "text.txt")

    def batch(self, bundle):
        return 64

    def settings(self, batch):
        large = {key: value for key, value in Steps("", 0, "124m", "dense", self.steps).settings(batch).items()
                 if key not in ("data.validation", "data.token_type", "model.vocabulary")}
        return {**large, "model.layers": 6, "model.heads": 6, "model.width": 384, "model.context": 256,
                "data.kind": "bytes", "data.train": ["text.txt"], "train.micro_batch": 8,
                "run.out": self.name}
