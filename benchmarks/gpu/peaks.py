"""Peak rates of devices, and model flops utilisation (MFU) relative to them."""
import re

# TFLOP/s of dense bf16 products with fp32 sums, by the driver's name of the device; the first matching pattern counts.
# Each is half of the rate "with sparsity" in NVIDIA's data sheet: A100 624 (June 2021), H100 1,979 SXM, 1,513 PCIe and
# 1,671 NVL (2023), H200 1,979 SXM and 1,671 NVL (2024), GH200 1,979 (2023), B200 4,500 (2024).
DENSE_BF16 = [("A100", 312.0), ("H100 PCIe", 756.5), ("H100 NVL", 835.5), ("H100", 989.5), ("H200 NVL", 835.5),
              ("GH200", 989.5), ("H200", 989.5), ("B200", 2250.0)]

# Storages with dense products. For others the formula would count flops of pruned weights, which are not computed.
DENSE_PRODUCTS = ("dense", "dense, no graphs", "dense, not deterministic",
                  "dense, own attention", "masked", "expanded", "expanded-8bit",
                  "PyTorch")
CONTEXT = 1024


def peak_flops(device):
    """Peak flops per second of a device by its name; None if unknown."""
    for name, tera in DENSE_BF16:
        if re.search(rf"\b{name}\b", device):
            return tera * 1e12
    return None


def flops_per_token(parameters, layers, width):
    """Forward and backward, 6 N + 12 L C T (Chowdhery et al. 2022, appendix B): N parameters without positions, which no
    product uses; L layers of width C, context T. Recomputation does not count."""
    return 6 * (parameters - CONTEXT * width) + 12 * layers * width * CONTEXT


def mfu(line, shape, device, causal=False):
    """Of a line of results with tokens/s, as a share of 1; None if it cannot be computed. causal: attention counts half,
    the products within the mask: 6 N + 6 L C T, the formula of llm.c."""
    peak = peak_flops(device)
    if not peak or line["storage"] not in DENSE_PRODUCTS or not line.get("parameters"):
        return None
    flops = flops_per_token(line["parameters"], shape["layers"], shape["width"])
    flops -= 6 * shape["layers"] * shape["width"] * CONTEXT if causal else 0
    return line["tokens_per_s"] * flops / peak
