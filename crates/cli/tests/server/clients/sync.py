"""What the Python SDK does, as its users write it. `python sync.py AREA`; the server is named by E2B_API_URL and the rest."""

import importlib.metadata
import os
import sys
import threading
import time

import httpx

import e2b
from e2b import CommandExitException, NotFoundException, Sandbox, TimeoutException


# SDKs until 2.5 say how long a sandbox lives when they connect, and know no other way to tell of its end.
IS_OLD = tuple(map(int, importlib.metadata.version("e2b").split(".")[:2])) < (2, 6)


def raises(kind, work):
    try:
        work()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def until(holds):
    """What comes by itself is waited for, and never for ever."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = holds()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come")


def commands():
    with Sandbox.create(timeout=300, envs={"GIVEN": "sandbox"}) as sandbox:
        run = sandbox.commands.run
        done = run("echo out; echo err >&2; echo $GIVEN $MORE; pwd; whoami", envs={"MORE": "call"})
        assert (done.exit_code, done.stderr) == (0, "err\n"), done
        assert done.stdout == "out\nsandbox call\n/home/user\nuser\n", done
        heard = []
        done = run("seq 1 3; printf ä", on_stdout=heard.append)
        assert "".join(heard) == done.stdout == "1\n2\n3\nä"
        error = raises(CommandExitException, lambda: run("echo why >&2; exit 7"))
        assert (error.exit_code, error.stderr) == (7, "why\n")
        assert run("id -u", user="root").stdout == "0\n"
        assert run("pwd", cwd="/tmp").stdout == "/tmp\n"
        raises(e2b.InvalidArgumentException, lambda: run("true", cwd="/nowhere"))
        raises(e2b.AuthenticationException, lambda: run("true", user="nobody-here"))
        raises(TimeoutException, lambda: run("sleep 600", timeout=1))
        until(lambda: "sleep 600" not in run("ps -eo args").stdout)
        # In the background: found again by its number, fed, and killed.
        cat = run("cat", background=True, stdin=True, timeout=0)
        assert cat.pid in [one.pid for one in sandbox.commands.list()]
        again = sandbox.commands.connect(cat.pid)
        sandbox.commands.send_stdin(cat.pid, "said\n")
        assert next(iter(again))[0] == "said\n"
        if hasattr(sandbox.commands, "close_stdin"):
            sandbox.commands.close_stdin(cat.pid)
            assert again.wait().exit_code == 0
        else:
            assert sandbox.commands.kill(cat.pid)
        sleeper = run("sleep 600", background=True)
        assert sleeper.kill()
        raises(CommandExitException, sleeper.wait)
        assert not sandbox.commands.kill(sleeper.pid)
        large = run("head -c 3000000 /dev/zero | tr '\\0' x")
        assert large.stdout == "x" * 3_000_000


def files():
    with Sandbox.create(timeout=300) as sandbox:
        there = sandbox.files
        written = there.write("folder/text", "text")
        assert written.path == "/home/user/folder/text", written
        assert there.read("folder/text") == "text"
        raw = bytes(range(256)) * 5000
        there.write("/tmp/raw", raw)
        assert bytes(there.read("/tmp/raw", format="bytes")) == raw
        assert b"".join(there.read("/tmp/raw", format="stream")) == raw
        if hasattr(there, "write_files"):
            many = there.write_files([{"path": f"many/{n}", "data": str(n)} for n in range(20)])
            assert len(many) == 20 and there.read("many/19") == "19"
        names = sorted(entry.name for entry in there.list("/home/user", depth=2) if not entry.name.startswith("."))
        assert {"folder", "text"} <= set(names), names
        assert there.make_dir("made/deep") and not there.make_dir("made/deep")
        assert there.exists("made/deep") and not there.exists("made/not")
        info = there.get_info("folder/text")
        assert (info.size, info.owner, info.permissions) == (4, "user", "-rw-r--r--"), info
        assert there.rename("folder/text", "made/moved").path == "/home/user/made/moved"
        there.remove("folder")
        assert not there.exists("folder")
        raises(NotFoundException, lambda: there.read("folder/text"))
        raises(NotFoundException, lambda: there.list("nowhere"))
        raises(e2b.InvalidArgumentException, lambda: there.read("/tmp"))
        watched = there.watch_dir("made", recursive=True)
        there.write("made/new/one", "1")
        until(lambda: any(event.name == "new/one" for event in watched.get_new_events()))
        watched.stop()
        raises(NotFoundException, lambda: there.watch_dir("nowhere"))


def signed():
    with Sandbox.create(timeout=300) as sandbox:
        up = sandbox.upload_url("up", use_signature_expiration=600)
        assert httpx.post(up, files={"file": b"sent"}).status_code == 200
        down = sandbox.download_url("up", use_signature_expiration=600)
        assert httpx.get(down).content == b"sent"
        assert httpx.get(down.replace("path=up", "path=other")).status_code == 401
        assert httpx.post(down, files={"file": b"x"}).status_code == 401
        over = httpx.get(sandbox.download_url("up", use_signature_expiration=-600))
        assert (over.status_code, over.json()["message"]) == (401, "signature is already expired"), over.text


def pty():
    with Sandbox.create(timeout=300) as sandbox:
        shell = sandbox.pty.create(e2b.PtySize(rows=24, cols=80), timeout=0)
        said = bytearray()
        reader = threading.Thread(target=lambda: [said.extend(piece[2] or b"") for piece in shell], daemon=True)
        reader.start()
        sandbox.pty.send_stdin(shell.pid, b"stty size; echo $((6*7))done\n")
        until(lambda: b"24 80" in said and b"42done" in said)
        sandbox.pty.resize(shell.pid, e2b.PtySize(rows=40, cols=100))
        sandbox.pty.send_stdin(shell.pid, b"stty size\n")
        until(lambda: b"40 100" in said)
        assert sandbox.pty.kill(shell.pid)
        reader.join(60)
        assert not reader.is_alive()


def lifecycle():
    sandbox = Sandbox.create(timeout=300, metadata={"whose": "mine", "a b": "c/d"}, envs={"GIVEN": "1"})
    info = sandbox.get_info()
    assert info.metadata["a b"] == "c/d" and info.sandbox_id == sandbox.sandbox_id
    found = Sandbox.list(query=e2b.SandboxQuery(metadata={"whose": "mine", "a b": "c/d"})).next_items()
    assert [one.sandbox_id for one in found] == [sandbox.sandbox_id]
    assert not Sandbox.list(query=e2b.SandboxQuery(metadata={"whose": "another's"})).next_items()
    sandbox.files.write("kept", "kept")
    sleeper = sandbox.commands.run("sleep 900", background=True)
    before = Sandbox.get_info(sandbox.sandbox_id).end_at
    again = Sandbox.connect(sandbox.sandbox_id, timeout=10)
    assert IS_OLD or Sandbox.get_info(sandbox.sandbox_id).end_at == before
    assert again.commands.run("echo $GIVEN").stdout == "1\n"
    sandbox.set_timeout(900)
    assert Sandbox.get_info(sandbox.sandbox_id).end_at > before
    if hasattr(sandbox, "pause"):
        sandbox.pause()
        assert not sandbox.is_running()
        paused = Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED])).next_items()
        assert [one.sandbox_id for one in paused] == [sandbox.sandbox_id]
        sandbox = Sandbox.connect(sandbox.sandbox_id)
        assert sandbox.is_running() and sandbox.files.read("kept") == "kept"
        assert sleeper.pid in [one.pid for one in sandbox.commands.list()]
    # Killed while a command runs: its reader is told what happened.
    handle = sandbox.commands.run("sleep 900", background=True)
    assert Sandbox.kill(sandbox.sandbox_id) and not Sandbox.kill(sandbox.sandbox_id)
    raises(Exception if IS_OLD else TimeoutException, handle.wait)
    assert not sandbox.is_running()
    raises(e2b.SandboxException, lambda: Sandbox.connect(sandbox.sandbox_id))
    raises(e2b.SandboxException, lambda: sandbox.commands.run("true"))


def snapshots():
    with Sandbox.create(timeout=300) as sandbox:
        sandbox.files.write("kept", "kept")
        taken = sandbox.create_snapshot(name="as-it-was")
        sandbox.files.write("kept", "changed")
        assert taken.snapshot_id in [one.snapshot_id for one in Sandbox.list_snapshots().next_items()]
        for named in (taken.snapshot_id, "as-it-was"):
            with Sandbox.create(named, timeout=300) as other:
                assert other.files.read("kept") == "kept"
        forks = sandbox.fork(count=2, timeout=300)
        assert [fork.files.read("kept") for fork in forks] == ["changed", "changed"]
        forks[0].files.write("kept", "its own")
        assert forks[1].files.read("kept") == "changed"
        for fork in forks:
            fork.kill()
        assert Sandbox.delete_snapshot(taken.snapshot_id) and not Sandbox.delete_snapshot(taken.snapshot_id)
        raises(e2b.SandboxException, lambda: Sandbox.create("as-it-was"))


def measures():
    with Sandbox.create(timeout=300) as sandbox:
        found = until(sandbox.get_metrics)
        assert found[0].mem_total > 0 and found[0].cpu_count >= 1, found


def pauses():
    """With memory what runs goes on; of the files alone, it is as after a start of the machine."""
    boot = "/proc/sys/kernel/random/boot_id"
    with Sandbox.create(timeout=300) as sandbox:
        first = sandbox.files.read(boot)
        sandbox.pause()
        sandbox.connect()
        assert sandbox.files.read(boot) == first
        sandbox.files.write("kept", "kept")
        sandbox.pause(keep_memory=False)
        sandbox.connect()
        assert sandbox.files.read(boot) != first and sandbox.files.read("kept") == "kept"


def network():
    with Sandbox.create(timeout=300, allow_internet_access=False) as sandbox:
        # Nothing is reached, not even what would refuse.
        dial = "python3 -c 'import socket; socket.create_connection((\"192.0.2.1\", 80), 5)'"
        raises(CommandExitException, lambda: sandbox.commands.run(dial))
        assert sandbox.get_info().allow_internet_access is False
        sandbox.update_network({"allow_out": ["192.0.2.0/24"], "deny_out": ["0.0.0.0/0"]})
        raises(e2b.SandboxException, lambda: sandbox.update_network({"deny_out": ["example.com"]}))
    raises(e2b.SandboxException, lambda: Sandbox.create(network={"egress_proxy": {"address": "192.0.2.1:3128"}}))


def templates():
    template = e2b.Template().from_base_image().run_cmd("echo built > /home/user/made").set_envs({"GIVEN": "by-template"})
    template = template.set_start_cmd("touch /tmp/started; sleep infinity", e2b.wait_for_file("/tmp/started"))
    heard = []
    e2b.Template.build(template, "mine:v1", on_build_logs=lambda entry: heard.append(entry.message))
    assert any("echo built" in line for line in heard), heard
    assert e2b.Template.exists("mine") and not e2b.Template.exists("not-mine")
    with Sandbox.create("mine:v1", timeout=300) as sandbox:
        assert sandbox.files.read("/home/user/made") == "built\n"
        assert sandbox.commands.run("echo $GIVEN").stdout == "by-template\n"
        assert sandbox.files.exists("/tmp/started")
    e2b.Template.assign_tags("mine:v1", ["stable"])
    Sandbox.create("mine:stable", timeout=300).kill()
    bad = e2b.Template().from_base_image().run_cmd("echo why >&2; exit 3")
    raises(e2b.BuildException, lambda: e2b.Template.build(bad, "bad"))
    unknown = e2b.Template().from_image("nowhere/at-all:1").run_cmd("true")
    error = raises(e2b.BuildException, lambda: e2b.Template.build(unknown, "unknown"))
    assert "images.map" in str(error) or "map" in str(error), error


def limits():
    """What is refused is told in the classes that users catch."""
    raises(e2b.AuthenticationException, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    raises(e2b.SandboxException, lambda: Sandbox.create("no-such-template"))
    raises(e2b.SandboxException, lambda: Sandbox.connect("i" + "0" * 20))
    first = [Sandbox.create(timeout=60) for _ in range(2)]
    raises(e2b.RateLimitException, lambda: Sandbox.create(timeout=60))
    for one in first:
        one.kill()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    # Threads of the SDK's own may crash the interpreter while it ends, and say nothing of what was looked at.
    os._exit(0)
