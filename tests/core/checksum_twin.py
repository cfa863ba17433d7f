"""XXH64 after its specification, with a known answer."""

MASK = 2**64 - 1
P1, P2, P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
P4, P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def rotl(x: int, r: int) -> int:
    return ((x << r) | (x >> (64 - r))) & MASK


def mix(lane: int, word: int) -> int:
    return rotl((lane + word * P2) & MASK, 31) * P1 & MASK


def xxh64(data: bytes) -> int:
    at, size = 0, len(data)

    def word(i: int, n: int) -> int:
        return int.from_bytes(data[i : i + n], "little")

    h = P5
    if size >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while size - at >= 32:
            lanes = [mix(lane, word(at + 8 * i, 8)) for i, lane in enumerate(lanes)]
            at += 32
        h = sum(rotl(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            h = ((h ^ mix(0, lane)) * P1 + P4) & MASK
    h = (h + size) & MASK
    while size - at >= 8:
        h = (rotl(h ^ mix(0, word(at, 8)), 27) * P1 + P4) & MASK
        at += 8
    if size - at >= 4:
        h = (rotl(h ^ word(at, 4) * P1 & MASK, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        h = rotl(h ^ byte * P5 & MASK, 11) * P1 & MASK
    h = (h ^ h >> 33) * P2 & MASK
    h = (h ^ h >> 29) * P3 & MASK
    return h ^ h >> 32


assert xxh64(b"") == 0xEF46DB3751D8E999
assert xxh64(b"abc") == 0x44BC2CF5AD770999
