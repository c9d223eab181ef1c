"""Data sets by name, from a local server: complete, interrupted, resumed, damaged, changed, malicious."""

import hashlib
import io
import json
import sys
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from antembed.cli import main
from antembed.data import download
from antembed.data.download import DataSet, Remote, fetch, get, unpack, verify
from antembed.data.text_file import DataError

BODY = bytes(range(256)) * 4000


class Server(BaseHTTPRequestHandler):
    """Serves `files`; gives up after `most` bytes; knows ranges, if they are of the same version."""

    files: dict[str, bytes] = {}  # noqa: RUF012
    most: int | None = None
    version: str | None = '"1"'
    status = shift = 0  # what a wrong server answers
    asked: list[str | None] = []  # noqa: RUF012

    def do_GET(self):
        body = self.files.get(self.path.strip("/"))
        self.asked.append(self.headers["Range"])
        if body is None:
            self.send_error(404)
            return
        first = 0
        if self.headers["Range"] and self.headers["If-Range"] == self.version:
            first = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        if first >= len(body):
            self.send_error(416)
            return
        self.send_response(self.status or (206 if first else 200))
        self.send_header("Content-Length", str(len(body) - first))
        if first:
            self.send_header("Content-Range", f"bytes {first + self.shift}-{len(body) - 1}/{len(body)}")
        if self.version:
            self.send_header("ETag", self.version)
        self.end_headers()
        self.wfile.write(body[first:][: self.most])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    class Own(Server):
        files, asked = {}, []

    running = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    Own.url = f"http://127.0.0.1:{running.server_port}/"
    yield Own
    running.shutdown()
    thread.join()
    running.server_close()


def tgz(files: dict[str, bytes], **odd: object) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, body in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            for field, value in odd.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(body))
    return out.getvalue()


def zipped(files: dict[str, bytes], mode: int = 0) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, body in files.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            packed.writestr(info, body)
    return out.getvalue()


def sets(server, name: str, md5: str = "") -> dict[str, DataSet]:
    return {"news": DataSet("news", (Remote(server.url + name, md5 and f"md5:{md5}"),))}


def test_fetched_and_told(server, tmp_path):
    server.files["a"] = BODY
    told = []
    fetch(server.url + "a", tmp_path / "a", lambda done, total: told.append((done, total)))
    assert (tmp_path / "a").read_bytes() == BODY
    assert told[-1] == (len(BODY), len(BODY))
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_what_broke_off_goes_on(server, tmp_path):
    server.files["a"], server.most = BODY, 400_000
    with pytest.raises(DataError, match=f"was interrupted after 400000 of {len(BODY)} bytes; run the command again to resume"):
        fetch(server.url + "a", tmp_path / "a")
    server.most = None
    fetch(server.url + "a", tmp_path / "a")
    assert server.asked == [None, "bytes=400000-"]
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("version", ['"2"', None])
def test_what_has_changed_begins_anew(server, tmp_path, version):
    server.files["a"], server.most = BODY, 400_000
    if version is None:
        server.version = None
    with pytest.raises(DataError, match="was interrupted"):
        fetch(server.url + "a", tmp_path / "a")
    server.files["a"], server.most, server.version = BODY[::-1], None, version
    fetch(server.url + "a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY[::-1]


def test_nothing_left_to_fetch(server, tmp_path):
    server.files["a"] = BODY
    (tmp_path / "a").write_bytes(BODY)
    (tmp_path / "a.version").write_text('"1"')
    fetch(server.url + "a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


def test_no_such_file_and_no_server(server, tmp_path):
    with pytest.raises(DataError, match=r"answered 404 Not Found; download the file elsewhere and use --from FOLDER"):
        fetch(server.url + "b", tmp_path / "b")
    with pytest.raises(DataError, match=r"could not be downloaded .*; run the command again, or use --from FOLDER"):
        fetch("http://127.0.0.1:9/b", tmp_path / "b")


def test_a_data_set_comes_is_kept_and_verified(server, tmp_path):
    server.files["n.tgz"] = tgz({"n_csv/train.csv": b"1,a\n", "n_csv/._train.csv": b"?", "n_csv/more/x": b"2"})
    here = get("news", tmp_path, sets=sets(server, "n.tgz"))
    assert (here / "train.csv").read_bytes() == b"1,a\n"
    assert (here / "more" / "x").read_bytes() == b"2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["news", "news.json"]
    written = json.loads((tmp_path / "news.json").read_text())
    assert written["fetched"]["n.tgz"]["sha256"] == hashlib.sha256(server.files["n.tgz"]).hexdigest()
    assert get("news", tmp_path, sets=sets(server, "n.tgz")) == here
    assert len(server.asked) == 1
    assert verify("news", tmp_path) == []
    (here / "train.csv").write_bytes(b"1,b\n")
    (here / "more" / "x").unlink()
    first, second = verify("news", tmp_path)
    assert first.endswith("x is missing")
    assert "train.csv has SHA-256" in second


def test_checksums_that_are_not_as_published_or_as_before(server, tmp_path):
    server.files["n.zip"] = zipped({"a": b"1"})
    right = hashlib.md5(server.files["n.zip"]).hexdigest()
    with pytest.raises(DataError, match=f"n.zip has MD5 {right}, published is 00; it is damaged or was replaced"):
        get("news", tmp_path, sets=sets(server, "n.zip", "00"))
    assert list(tmp_path.iterdir()) == []
    here = get("news", tmp_path, sets=sets(server, "n.zip", right))
    (here / "a").unlink()
    here.rmdir()
    server.files["n.zip"] = zipped({"a": b"2"})
    with pytest.raises(DataError, match=r"n.zip has SHA-256 .* at the first download"):
        get("news", tmp_path, sets=sets(server, "n.zip"))
    assert not here.exists()


def test_from_a_folder(server, tmp_path):
    (tmp_path / "brought").mkdir()
    with pytest.raises(DataError, match=r"brought has no n.tgz; download it from http"):
        get("news", tmp_path / "to", local=tmp_path / "brought", sets=sets(server, "n.tgz"))
    (tmp_path / "brought" / "n.tgz").write_bytes(tgz({"train.csv": b"1,a\n"}))
    here = get("news", tmp_path / "to", local=tmp_path / "brought", sets=sets(server, "n.tgz"))
    assert (here / "train.csv").read_bytes() == b"1,a\n"
    assert (tmp_path / "brought" / "n.tgz").is_file()
    assert server.asked == []


@pytest.mark.parametrize(
    ("archive", "told"),
    [
        (tgz({"../evil": b"x"}), r"contains '../evil', a path outside its folder"),
        (tgz({"a/../../evil": b"x"}), "outside its folder"),
        (tgz({"/evil": b"x"}), "contains '/evil'"),
        (tgz({"c:evil": b"x"}), "outside its folder"),
        (tgz({"a": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "'a', a link or a device"),
        (tgz({"a": b""}, type=tarfile.LNKTYPE, linkname="b"), "a link or a device"),
        (tgz({"a": b""}, type=tarfile.FIFOTYPE), "a link or a device"),
        (tgz({"a": bytes(2000)}), "unpacks to more than 1000 bytes"),
        (tgz({}), "has no files"),
        (tgz({"a": BODY})[:-300], "could not be unpacked"),
        (b"no archive", "could not be unpacked"),
        (zipped({"../evil": b"x"}), r"contains '../evil'"),
        (zipped({"/evil": b"x"}), "contains '/evil'"),
        (zipped({"a": b"/etc/passwd"}, 0o120777), "a link or a device"),
        (zipped({"a": bytes(2000)}), "unpacks to more than 1000 bytes"),
    ],
    ids=range(15),
)
def test_evil_archives_leave_nothing(server, tmp_path, archive, told):
    server.files["n.tgz"] = archive
    largest = 1 << 30 if len(archive) > 100_000 or b"could" in told.encode() else 1000
    with pytest.raises(DataError, match=told):
        get("news", tmp_path / "data", sets=sets(server, "n.tgz"), max_bytes=largest)
    assert list((tmp_path / "data").iterdir()) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "data"]


def test_a_folder_with_a_file_of_its_own_name(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped({"x/x": b"1", "x/y": b"2"}))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x", "y"]


def test_from_the_command_line(tmp_path, monkeypatch, capsys):
    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["antembed", "data", *words])
        with pytest.raises(SystemExit) as left:
            main()
        assert left.value.code == (1 if "wrong" in words else 0)

    brought = tmp_path / "brought"
    brought.mkdir()
    (brought / "ag_news_csv.tgz").write_bytes(tgz({"ag_news_csv/train.csv": b"1,a\n"}))
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path / "data"))
    run("get", "ag-news", "--from", str(brought))
    assert capsys.readouterr().out.strip() == str(tmp_path / "data" / "ag-news")
    run("verify")
    run("list", "--json")
    verified, listed = capsys.readouterr().out.splitlines()
    assert verified == "ag-news: as fetched"
    here = {row["name"]: row["here"] for row in json.loads(listed)}
    assert (set(here), here["ag-news"], here["ptb"]) == (set(download.DATA_SETS), str(tmp_path / "data" / "ag-news"), None)
    run("get", "wrong")
    assert "unknown data set 'wrong'; there are: ag-news" in capsys.readouterr().err


def test_files_are_found_where_data_get_puts_them(tmp_path, monkeypatch):
    """So that recipes can name ml-1m/ratings.dat on any machine."""
    monkeypatch.setenv("ANTEMBED_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"ml-1m/ratings.dat is neither here nor in .*fetch it with: antembed data get ml-1m"):
        download.find_data("ml-1m/ratings.dat")
    (tmp_path / "data" / "ml-1m").mkdir(parents=True)
    (tmp_path / "data" / "ml-1m" / "ratings.dat").write_text("fetched")
    assert download.find_data("ml-1m/ratings.dat").read_text() == "fetched"
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("here")
    assert download.find_data("ml-1m/ratings.dat").read_text() == "here"
    assert download.find_data("unknown/file.csv") == Path("unknown/file.csv")  # whoever reads it says what is missing
    with pytest.raises(DataError, match=r"ptb is neither here nor in .*fetch it with: antembed data get ptb"):
        download.find_data("ptb")


def test_the_one_file_of_a_data_set(tmp_path):
    with pytest.raises(DataError, match=r"is a folder with no file of ratings; it has: none; give one file"):
        download.one_file(tmp_path, "ratings")
    (tmp_path / "movies.dat").touch()
    (tmp_path / "ratings.dat").touch()
    assert download.one_file(tmp_path, "ratings") == tmp_path / "ratings.dat"
    assert download.one_file(tmp_path / "movies.dat", "ratings") == tmp_path / "movies.dat"
    (tmp_path / "ratings.csv.gz").touch()
    with pytest.raises(
        DataError, match=r"2 files of ratings \(ratings.csv.gz, ratings.dat\); it has: movies.dat, .*; give one"
    ):
        download.one_file(tmp_path, "ratings")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"status": 206}, "status 206 to a plain request"), ({"status": 203}, "status 203")],
)
def test_wrong_answers(server, tmp_path, wrong, told):
    server.files["a"] = BODY
    for name, value in wrong.items():
        setattr(server, name, value)
    with pytest.raises(DataError, match=told):
        fetch(server.url + "a", tmp_path / "a")


def test_another_part_than_was_asked_for_is_not_appended(server, tmp_path):
    server.files["a"], server.most = BODY, 400_000
    with pytest.raises(DataError, match="was interrupted"):
        fetch(server.url + "a", tmp_path / "a")
    server.most, server.shift = None, 7
    fetch(server.url + "a", tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == BODY


@pytest.mark.parametrize("pack", [tgz, zipped])
def test_a_damaged_archive_is_never_unpacked_in_silence(tmp_path, pack):
    rng = np.random.default_rng(0)
    whole = pack({"a/train.csv": rng.bytes(160_000), "./a/test.csv": b"1,x\n" * 1000})
    noticed = 0
    for n, bit in enumerate(rng.integers(80, 8 * len(whole), 60)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "x").write_bytes(changed)
        try:
            unpack(tmp_path / "x", tmp_path / str(n))
        except DataError:
            noticed += 1
            continue
        found = {file.name: file.read_bytes() for file in (tmp_path / str(n)).rglob("*") if file.is_file()}
        assert hashlib.sha256(found["train.csv"]).digest() == hashlib.sha256(rng_file()).digest()
    assert noticed > 50


def rng_file():
    return np.random.default_rng(0).bytes(160_000)


def test_archives_of_a_folder_by_its_dot(tmp_path):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.csv").write_bytes(b"1")
        tar.add(tmp_path / "in", "./")
    (tmp_path / "x.tgz").write_bytes(out.getvalue())
    unpack(tmp_path / "x.tgz", tmp_path / "out")
    assert (tmp_path / "out" / "a.csv").read_bytes() == b"1"


def test_what_a_killed_process_has_left_is_removed(server, tmp_path):
    server.files["a.tgz"] = tgz({"a.csv": b"1"})
    (tmp_path / ".partial-news").mkdir()
    (tmp_path / ".partial-news" / "half.csv").touch()
    get("news", tmp_path, sets=sets(server, "a.tgz"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["news", "news.json"]
    assert [path.name for path in (tmp_path / "news").iterdir()] == ["a.csv"]
