"""Damaged and forged files: one kind of error, before the first vector; and words of every kind."""

import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from tests.command import call
from tests.mutations import Attack, is_bad, samples

from antembed.classify.ngram_file import HEAD, HashedNgramsError, read_hashed_ngrams
from antembed.tables.container import TableError, pack, unpack
from antembed.tables.save import load_table, read_table, serialize
from antembed.tables.word_index import BLOCK, WordIndex, pack_words


@pytest.fixture(scope="module")
def files():
    return samples()


def test_mutated_files_are_refused(files, tmp_path):
    attack = Attack(files, 1, tmp_path)
    found = [attack.one(number) for number in range(1200)]
    assert [row for row in found if is_bad(*row)] == []
    assert len([row for row in found if row[2] == "refused"]) > 900


def test_every_bit_of_a_file_counts():
    data = serialize(np.eye(3, dtype=np.float32), None, bias=np.ones(3))
    for at in range(8 * len(data)):
        changed = bytearray(data)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(TableError):
            read_table(bytes(changed))


def test_an_error_names_the_file_and_the_array(tmp_path):
    data = serialize(np.ones((3, 3), np.float32), None)
    (tmp_path / "t.ant").write_bytes(data[:-1] + b"\x01")
    with pytest.raises(TableError, match=r"t.ant is damaged: the checksum of 'weights' is \w{8}, expected \w{8}; copy"):
        load_table(tmp_path / "t.ant")
    (tmp_path / "t.ant").write_bytes(data.replace(b"fp32", b"fp16"))
    with pytest.raises(TableError, match="the checksum of its header is"):
        load_table(tmp_path / "t.ant")


def test_large_files_are_verified_on_request(tmp_path, monkeypatch):
    T = np.random.default_rng(0).random((50, 7)).astype(np.float32)
    data, path = serialize(T, np.eye(7, dtype=np.float32), encoding="csr"), tmp_path / "t.ant"
    path.write_bytes(data)
    assert load_table(path).checksums == "right"
    assert json.loads(call("inspect", path, "--verify", "--json"))["checksums"] == "right"
    monkeypatch.setattr("antembed.tables.container.VERIFIED", 0)
    monkeypatch.setattr("antembed.tables.container.SMALL_ARRAY", 0)
    assert load_table(path).checksums == "not all compared"
    np.testing.assert_array_equal(load_table(path)[:], load_table(path, verify=True)[:])
    path.unlink()
    path.write_bytes(data[:-51] + b"\xff" + data[-50:])  # a column beyond the last: found where it is used, or by the checksum
    with pytest.raises(TableError, match=r"a row is damaged .*verify=True"):
        load_table(path)[:]
    with pytest.raises(TableError, match="checksum of 'columns'"):
        load_table(path, verify=True)
    with pytest.raises(ValueError, match="checksum of 'columns'"):
        call("inspect", path, "--verify")


def test_removed_checksums_are_missed(files):
    found = unpack(files["csr int8"])
    stripped = safetensors.numpy.save(dict(found.arrays), {"antembed-table": json.dumps(found.about)})
    with pytest.raises(TableError, match="lacks checksums"):
        read_table(stripped)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("csr int8", {"encoding": "zip"}, "encoding is 'zip'; there are: plain"),
        ("csr int8", {"objects": 2**50}, "objects is 1125899906842624, expected an integer"),
        ("csr int8", {"offset": float("inf")}, "offset is inf"),
        ("csr int8", {"columns": 10}, "'columns' has 10, expected less than 10|has the shape"),
        ("coded", {"rows_per_block": 2**30}, "blocks of 1073741824 rows"),
        ("coded", {"step": 0.0}, "step is 0.0"),
        ("product 4 bits", {"padding": 700}, "padding is 700, there are 700"),
    ],
)
def test_forged_facts(files, name, change, message):
    found = unpack(files[name])
    with pytest.raises(TableError, match=message):
        read_table(pack(dict(found.arrays), {**found.about, **change}))


@pytest.mark.parametrize("verify", [None, False])
@pytest.mark.parametrize(
    ("name", "arrays", "facts"),
    [
        ("plain fp32", {"weights": 1e38, "anchors": 1e38}, {}),
        ("bitmap fp32", {"values": 1e30, "anchors": 1e30}, {}),
        ("csr fp32", {"values": 1e38, "anchors": 10.0}, {}),
        ("packed fp32", {"values": -1e38, "anchors": 10.0}, {}),
        ("plain int8", {"scales": 1e38}, {}),
        ("packed int4", {"scales": 1e38}, {}),
        ("shared rows", {"scales": 1e36}, {}),
        ("coded", {}, {"norm_base": 9e19, "step": 9e11}),
        ("coded", {}, {"weighting": 1.0, "mean_place": 1e-300}),
        ("coded", {"mean": np.full(12, 1e38, np.float32)}, {"norm_base": 10.0}),
        ("coded norms words", {"norms": 255}, {"norm_base": 9e19}),
        ("sparse", {"anchor_scales": 6e4, "anchors": 127}, {"norm_base": 9e19, "step": 9e11}),
        ("sparse", {}, {"weighting": 1.0, "mean_place": 1e-300}),
        ("sparse norms words", {"norm_frequencies": np.full(1 << 10, 1 << 6, np.uint16)}, {}),
    ],
)
def test_products_beyond_fp32_are_refused(files, tmp_path, name, arrays, facts, verify):
    """Right checksums, finite numbers: their products are not."""
    found = unpack(files[name])
    forged = {key: value for key, value in arrays.items() if not np.isscalar(value)}
    for key in arrays.keys() - forged.keys():
        array = found.arrays[key]
        forged[key] = np.where(array != 0, arrays[key], 0).astype(array.dtype)
    (tmp_path / "t.ant").write_bytes(pack({**found.arrays, **forged}, {**found.about, **facts}))
    message = r"multiply to .*, fp32 ends at 3\.4e\+38|not finite; load the file with verify=True"
    with pytest.raises(TableError, match=message), np.errstate(over="ignore", invalid="ignore"):
        load_table(tmp_path / "t.ant", verify=verify)[:]


def test_scores_beyond_fp32_are_refused(files):
    model = read_hashed_ngrams(files["ngrams"], "f")
    forged = replace(model, B=np.full_like(model.B, 6e4), values=np.full_like(model.values, 3e38)).to_bytes()
    with pytest.raises(HashedNgramsError, match=r"its scores multiply to 1\.8e\+43, fp32 ends at 3\.4e\+38"):
        read_hashed_ngrams(forged, "f")


def test_what_is_written_can_be_read():
    T, A = np.full((3, 2), 1e30, np.float32), np.full((2, 4), 1e30, np.float32)
    for values in ("fp32", "int8"):
        with pytest.raises(
            ValueError, match=r"beyond fp16|T and A multiply to 2e\+60, fp32 ends at 3\.4e\+38; training has diverged, lower"
        ):
            serialize(T, A, values=values)
    assert np.isfinite(read_table(serialize(T, A / np.float32(1e23)))[:]).all()


def test_a_few_bytes_do_not_fill_the_memory(files):
    found = unpack(files["packed fp32"])
    arrays = {**found.arrays, "coded_bits": np.zeros(1000, np.uint8)}
    about = {**found.about, "objects": 1 << 25, "rows": 1 << 25}
    with pytest.raises(TableError, match="bytes claim to be 67108864"):
        read_table(pack({name: arrays[name] for name in arrays if "bias" not in name}, about))


@pytest.mark.parametrize("place", [0, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("number", [2**31, 2**40, -1, 1.5, None])
def test_forged_classifiers(files, place, number):
    data = files["ngrams"]
    magic, version, _, length, _ = HEAD.unpack_from(data)
    about, rest = json.loads(zlib.decompress(data[HEAD.size : HEAD.size + length])), data[HEAD.size + length :]
    about["s"][place] = number
    text = zlib.compress(json.dumps(about).encode())
    forged = HEAD.pack(magic, version, len(text + rest), len(text), zlib.crc32(text + rest)) + text + rest
    with pytest.raises(HashedNgramsError, match="is damaged"):
        read_hashed_ngrams(forged, "f")


def test_words_of_every_kind():
    words = ["", "a", "a\nb", "ž", "žlutý", "  ", "\x00", "𝄞", "a" * 300, "a" * 299 + "b", *(f"w{n}" for n in range(3 * BLOCK))]
    words = [words[n] for n in np.random.default_rng(0).permutation(len(words))]
    index = WordIndex(pack_words(words), len(words))
    assert index.all() == words
    assert [index.find(word) for word in words] == list(range(len(words)))
    assert [index.word(row) for row in range(len(words))] == words
    assert [index.find(word) for word in ("w", "zzz", "aa", "\udc80")] == [None] * 4
    assert WordIndex(pack_words([]), 0).find("a") is None
    for size in (1, 2, 3, 8, 9):
        assert WordIndex(pack_words(words[:size]), size).all() == words[:size]


def test_words_and_bits_of_version_5_are_refused(files, tmp_path):
    """Words separated by line ends with rows in whole bytes; bits compressed by zlib."""
    words, packed = unpack(files["coded norms words"]), unpack(files["packed fp32"])
    older = [
        (words, {**words.arrays, "word_rows": np.zeros((words.about["objects"], 2), np.uint8)}),
        (packed, {**packed.arrays, "packed_bits": packed.arrays["coded_bits"]}),
    ]
    for found, arrays in older:
        (tmp_path / "t.ant").write_bytes(pack(arrays, found.about))
        with pytest.raises(TableError, match=r"t.ant has bits or words as before version 6 .* export or compress it anew"):
            load_table(tmp_path / "t.ant")


def test_a_text_file_is_not_called_damaged(tmp_path):
    (tmp_path / "words.txt").write_text("the 0.1 0.2 0.3\n" * 9)
    with pytest.raises(TableError, match=r"words.txt is no antembed table: it begins with 'the 0.1 '; make one with antembed"):
        load_table(tmp_path / "words.txt")
