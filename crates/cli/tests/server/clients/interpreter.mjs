// What the code interpreter's JavaScript SDK does, as its users write it. The module is named by E2B_MODULE.
import assert from 'node:assert/strict'

const { Sandbox } = await import(`${process.env.E2B_MODULE}/dist/index.mjs`)

const sandbox = await Sandbox.create({ timeoutMs: 600_000 })
try {
  await sandbox.runCode('x = 1')
  const done = await sandbox.runCode('print("out"); x + 1')
  assert.equal(done.text, '2')
  assert.deepEqual(done.logs.stdout, ['out\n'])
  const context = await sandbox.createCodeContext({ cwd: '/tmp' })
  const there = await sandbox.runCode('import os; os.getcwd()', { context })
  assert.equal(there.text, '/tmp')
  const chart = await sandbox.runCode('import matplotlib.pyplot as plt; plt.bar(["a"], [1]); plt.show()')
  assert.equal(chart.results[0].chart.type, 'bar')
  const wrong = await sandbox.runCode('nothing')
  assert.equal(wrong.error.name, 'NameError')
} finally {
  await sandbox.kill()
}
