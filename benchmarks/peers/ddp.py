"""Shared by scripts that measure PyTorch DDP: communication hooks, and the bytes that a rank sent."""
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HOOKS = ["none", "fp16", "bf16", "powersgd"]


def add_options(parser):
    parser.add_argument("--hook", choices=HOOKS, default="none", help="torch's communication hook")
    parser.add_argument("--matrix-rank", type=int, default=1, help="rank of powersgd's factors")


def bucket_megabytes(hook):
    """PowerSGD takes all gradients as one bucket. With several buckets torch's callbacks sometimes start the sums of two
    of them in different orders on different ranks, and gloo adds unrelated data or aborts (seen with 2.15)."""
    return 1024 if hook == "powersgd" else None


def register(model, hook, matrix_rank, plain_steps):
    """plain_steps: steps before powersgd begins; torch requires at least 2."""
    if hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=matrix_rank, start_powerSGD_iter=plain_steps)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        model.register_comm_hook(None, getattr(default_hooks, hook + "_compress_hook"))


def sent_bytes(interface):
    """Bytes that the kernel has counted so far on an interface of this network namespace."""
    with open("/proc/self/net/dev") as lines:
        for line in lines:
            name, _, counters = line.partition(":")
            if name.strip() == interface:
                return int(counters.split()[8])
    raise SystemExit(f"no interface {interface!r}: set GLOO_SOCKET_IFNAME to the interface that gloo uses")
