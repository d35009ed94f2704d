// What the JavaScript SDK does, as its users write it. `node node.mjs AREA`, where E2B_MODULE is the SDK's folder.
import assert from 'node:assert/strict'
import { createRequire } from 'node:module'

const require = createRequire(import.meta.url)
const e2b = require(process.env.E2B_MODULE)
const { Sandbox, CommandExitError, NotFoundError, TimeoutError } = e2b

async function until(holds) {
  for (let n = 0; n < 1200; n++) {
    const found = await holds()
    if (found) return found
    await new Promise((done) => setTimeout(done, 50))
  }
  assert.fail('it did not come')
}

async function within(work) {
  const sandbox = await Sandbox.create({ timeoutMs: 300_000, envs: { GIVEN: 'sandbox' } })
  try {
    await work(sandbox)
  } finally {
    await sandbox.kill()
  }
}

const areas = {
  commands: () =>
    within(async (sandbox) => {
      const done = await sandbox.commands.run('echo out; echo err >&2; echo $GIVEN $MORE; whoami', {
        envs: { MORE: 'call' },
      })
      assert.equal(done.stdout, 'out\nsandbox call\nuser\n')
      assert.equal(done.stderr, 'err\n')
      await assert.rejects(sandbox.commands.run('exit 7'), (error) => error instanceof CommandExitError && error.exitCode === 7)
      await assert.rejects(sandbox.commands.run('sleep 600', { timeoutMs: 1000 }), TimeoutError)
      let heard = ''
      const cat = await sandbox.commands.run('cat', { background: true, stdin: true, timeoutMs: 0, onStdout: (text) => (heard += text) })
      await sandbox.commands.sendStdin(cat.pid, 'said\n')
      await until(() => heard === 'said\n')
      assert.ok((await sandbox.commands.list()).some((one) => one.pid === cat.pid))
      assert.ok(await cat.kill())
      await assert.rejects(cat.wait(), CommandExitError)
      const many = await Promise.all([...Array(20).keys()].map((n) => sandbox.commands.run(`sleep 0.2; echo ${n}`)))
      assert.deepEqual(many.map((one) => one.stdout), [...Array(20).keys()].map((n) => `${n}\n`))
    }),

  files: () =>
    within(async (sandbox) => {
      const written = await sandbox.files.write('folder/text', 'text')
      assert.equal(written.path, '/home/user/folder/text')
      assert.equal(await sandbox.files.read('folder/text'), 'text')
      const raw = new Uint8Array(1_000_000).map((_, n) => n % 251)
      await sandbox.files.write('/tmp/raw', new Blob([raw]))
      assert.deepEqual(await sandbox.files.read('/tmp/raw', { format: 'bytes' }), raw)
      assert.ok(await sandbox.files.makeDir('made'))
      assert.ok(!(await sandbox.files.makeDir('made')))
      await sandbox.files.rename('folder/text', 'made/moved')
      assert.ok(await sandbox.files.exists('made/moved'))
      assert.deepEqual((await sandbox.files.list('made')).map((entry) => entry.name), ['moved'])
      const seen = []
      const handle = await sandbox.files.watchDir('made', (event) => seen.push(event), { recursive: true, timeoutMs: 0 })
      await sandbox.files.write('made/new/one', '1')
      await until(() => seen.some((event) => event.name === 'new/one'))
      await handle.stop()
      await sandbox.files.remove('made')
      await assert.rejects(sandbox.files.read('made/moved'), NotFoundError)
      const url = await sandbox.downloadUrl('/tmp/raw', { useSignatureExpiration: 600 })
      assert.equal((await (await fetch(url)).arrayBuffer()).byteLength, 1_000_000)
      assert.equal((await fetch(url.replace('raw', 'other'))).status, 401)
    }),

  pty: () =>
    within(async (sandbox) => {
      let said = ''
      const shell = await sandbox.pty.create({ cols: 80, rows: 24, timeoutMs: 0, onData: (data) => (said += Buffer.from(data)) })
      await sandbox.pty.sendInput(shell.pid, new TextEncoder().encode('stty size\n'))
      await until(() => said.includes('24 80'))
      await sandbox.pty.resize(shell.pid, { cols: 100, rows: 40 })
      await sandbox.pty.sendInput(shell.pid, new TextEncoder().encode('stty size; exit 5\n'))
      await assert.rejects(shell.wait(), (error) => error.exitCode === 5)
      assert.ok(said.includes('40 100'))
    }),

  lifecycle: async () => {
    const sandbox = await Sandbox.create({ timeoutMs: 300_000, metadata: { whose: 'mine', 'a b': 'c/d' } })
    const id = sandbox.sandboxId
    const found = await Sandbox.list({ query: { metadata: { whose: 'mine', 'a b': 'c/d' } } }).nextItems()
    assert.deepEqual(found.map((one) => one.sandboxId), [id])
    await sandbox.files.write('kept', 'kept')
    const pause = sandbox.pause ? () => sandbox.pause() : () => sandbox.betaPause()
    await pause()
    assert.ok(!(await sandbox.isRunning()))
    const again = await Sandbox.connect(id)
    assert.equal(await again.files.read('kept'), 'kept')
    await again.setTimeout(900_000)
    assert.ok((await again.getInfo()).endAt > new Date(Date.now() + 600_000))
    const sleeper = await again.commands.run('sleep 900', { background: true })
    // SDKs until 2.5 have no better word for it.
    const ended = assert.rejects(sleeper.wait(), /killed or reached its end of life|terminated/)
    assert.ok(await Sandbox.kill(id))
    await ended
    assert.ok(!(await Sandbox.kill(id)))
    assert.ok(!(await again.isRunning()))
  },

  snapshots: () =>
    within(async (sandbox) => {
      await sandbox.files.write('kept', 'kept')
      const taken = await sandbox.createSnapshot()
      const other = await Sandbox.create(taken.snapshotId, { timeoutMs: 300_000 })
      assert.equal(await other.files.read('kept'), 'kept')
      await other.kill()
      assert.ok(await Sandbox.deleteSnapshot(taken.snapshotId))
      assert.ok(!(await Sandbox.deleteSnapshot(taken.snapshotId)))
    }),

  templates: async () => {
    const template = e2b.Template().fromBaseImage().runCmd('echo built > /home/user/made')
    await e2b.Template.build(template, 'mine', {})
    const sandbox = await Sandbox.create('mine', { timeoutMs: 300_000 })
    assert.equal(await sandbox.files.read('/home/user/made'), 'built\n')
    await sandbox.kill()
    await assert.rejects(e2b.Template.build(e2b.Template().fromBaseImage().runCmd('exit 3'), 'bad', {}), e2b.BuildError)
  },
}

await areas[process.argv[2]]()
