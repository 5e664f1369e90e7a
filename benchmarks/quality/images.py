"""Subsets of Fashion-MNIST as IDX files."""
import pathlib
import struct


def read(path):
    content = pathlib.Path(path).read_bytes()
    extents = struct.unpack(f">{content[3]}I", content[4:4 + 4 * content[3]])
    return extents, content[4 + 4 * content[3]:]


def write(path, extents, values):
    head = bytes([0, 0, 8, len(extents)]) + struct.pack(f">{len(extents)}I", *extents)
    pathlib.Path(path).write_bytes(head + bytes(values))


def halved(images, height, width):
    """Means of 2 x 2 pixels, rounded."""
    out = bytearray()
    for begin in range(0, len(images), 2 * width):
        a, b = images[begin:begin + width], images[begin + width:begin + 2 * width]
        out += bytes((p + q + r + s + 2) // 4 for p, q, r, s in zip(a[::2], a[1::2], b[::2], b[1::2]))
    return out


def subset(source, folder, train, validation, half):
    """Writes the first images of both sets of SOURCE to FOLDER; returns the settings that name them."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {}
    for key, name, count in (("data.train", "train", train), ("data.validation", "t10k", validation)):
        files = []
        for kind in ("images-idx3-ubyte", "labels-idx1-ubyte"):
            path = folder / f"{name}-{count}{'-half' if half else ''}-{kind}"
            extents, content = read(pathlib.Path(source) / f"{name}-{kind}")
            if not path.exists():
                rest = extents[1:]
                size = 1
                for extent in rest:
                    size *= extent
                content = content[:count * size]
                if half and len(rest) == 2:
                    content, rest = halved(content, *rest), (rest[0] // 2, rest[1] // 2)
                write(path, (count, *rest), content)
            files.append(str(path.resolve()))
        settings[key] = files
    side = 14 if half else 28
    return {**settings, "data.kind": "images", "data.mean": [0.2860], "data.deviation": [0.3530],
            "model.image": [side, side, 1]}
