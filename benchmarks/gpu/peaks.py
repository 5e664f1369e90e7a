"""What a device could do at most, and model flops utilisation (MFU) against it."""
import re

# Dense bf16 products with fp32 sums, TFLOP/s, by the name that the driver tells; the first pattern that is found
# counts. Half of what NVIDIA's data sheets of each product state "with sparsity": A100 624 (sheet of June 2021), H100
# 1,979 SXM, 1,513 PCIe and 1,671 NVL (2023), H200 1,979 SXM and 1,671 NVL (2024), GH200 1,979 (2023), B200 4,500 (2024).
DENSE_BF16 = [("A100", 312.0), ("H100 PCIe", 756.5), ("H100 NVL", 835.5), ("H100", 989.5), ("H200 NVL", 835.5),
              ("GH200", 989.5), ("H200", 989.5), ("B200", 2250.0)]

# Storages whose products are dense; of the others the same formula would count flops that nobody does.
DENSE_PRODUCTS = ("dense", "dense, no graphs", "dense, not deterministic", "masked", "expanded", "expanded-8bit",
                  "PyTorch")
CONTEXT = 1024


def peak_flops(device):
    """Of a device by its name; None where it is not known."""
    for name, tera in DENSE_BF16:
        if re.search(rf"\b{name}\b", device):
            return tera * 1e12
    return None


def flops_per_token(parameters, layers, width):
    """Forward and backward, 6 N + 12 L C T (Chowdhery et al. 2022, appendix B): N parameters without those of
    positions, which no product uses; L layers of width C, context T. What is computed again does not count."""
    return 6 * (parameters - CONTEXT * width) + 12 * layers * width * CONTEXT


def mfu(line, shape, device):
    """Of a line of results with tokens/s, as a share of 1; None where something is not known."""
    peak = peak_flops(device)
    if not peak or line["storage"] not in DENSE_PRODUCTS or not line.get("parameters"):
        return None
    return line["tokens_per_s"] * flops_per_token(line["parameters"], shape["layers"], shape["width"]) / peak
