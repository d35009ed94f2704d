"""What the Python SDK's other half does: the same, without threads. `python aio.py AREA`."""

import asyncio
import os
import sys

import e2b
from e2b import AsyncSandbox, CommandExitException, NotFoundException


async def raises(kind, work):
    try:
        await work
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


async def until(holds):
    for _ in range(1200):
        if holds():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come")


async def commands():
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        run = sandbox.commands.run
        assert (await run("echo out; whoami")).stdout == "out\nuser\n"
        assert (await raises(CommandExitException, run("exit 3"))).exit_code == 3
        # Many at once, each with its own answer.
        answers = await asyncio.gather(*(run(f"sleep 0.2; echo {n}") for n in range(20)))
        assert [answer.stdout for answer in answers] == [f"{n}\n" for n in range(20)]
        heard = []
        cat = await run("cat", background=True, stdin=True, timeout=0, on_stdout=heard.append)
        await sandbox.commands.send_stdin(cat.pid, "said\n")
        await until(lambda: "".join(heard) == "said\n")
        assert await cat.kill()
        await raises(CommandExitException, cat.wait())
        await raises(e2b.TimeoutException, run("sleep 600", timeout=1))


async def files():
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        there = sandbox.files
        await there.make_dir("watched")
        seen = []
        handle = await there.watch_dir("watched", on_event=seen.append, recursive=True, timeout=0)
        await there.write("watched/deep/file", "text")
        await until(lambda: any(event.name == "deep/file" for event in seen))
        await handle.stop()
        assert await there.read("watched/deep/file") == "text"
        stream = await there.read("watched/deep/file", format="stream")
        assert b"".join([piece async for piece in stream]) == b"text"
        await raises(NotFoundException, there.read("nowhere"))
        assert [entry.name for entry in await there.list("watched")] == ["deep"]


async def pty():
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        said = bytearray()
        shell = await sandbox.pty.create(e2b.PtySize(rows=24, cols=80), on_data=said.extend, timeout=0)
        await sandbox.pty.send_stdin(shell.pid, b"stty size; exit 5\n")
        assert (await raises(CommandExitException, shell.wait())).exit_code == 5
        assert b"24 80" in said


async def lifecycle():
    sandbox = await AsyncSandbox.create(timeout=300, metadata={"whose": "mine"})
    await sandbox.files.write("kept", "kept")
    await sandbox.pause()
    assert not await sandbox.is_running()
    sandbox = await AsyncSandbox.connect(sandbox.sandbox_id)
    assert await sandbox.files.read("kept") == "kept"
    handle = await sandbox.commands.run("sleep 900", background=True)
    assert await sandbox.kill()
    await raises(e2b.TimeoutException, handle.wait())
    assert not await sandbox.is_running()
    assert not await AsyncSandbox.kill(sandbox.sandbox_id)


async def snapshots():
    async with await AsyncSandbox.create(timeout=300) as sandbox:
        await sandbox.files.write("kept", "kept")
        taken = await sandbox.create_snapshot()
        forks = await sandbox.fork(count=2, timeout=300)
        other = await AsyncSandbox.create(taken.snapshot_id, timeout=300)
        for one in [other, *forks]:
            assert await one.files.read("kept") == "kept"
            await one.kill()
        assert await AsyncSandbox.delete_snapshot(taken.snapshot_id)


async def templates():
    template = e2b.AsyncTemplate().from_base_image().run_cmd("echo built > /home/user/made")
    await e2b.AsyncTemplate.build(template, "mine")
    async with await AsyncSandbox.create("mine", timeout=300) as sandbox:
        assert await sandbox.files.read("/home/user/made") == "built\n"
    bad = e2b.AsyncTemplate().from_base_image().run_cmd("exit 3")
    await raises(e2b.BuildException, e2b.AsyncTemplate.build(bad, "bad"))


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]]())
    # Threads of the SDK's own may crash the interpreter while it ends, and say nothing of what was looked at.
    os._exit(0)
