// For the same areas by a domain: `node --require domain.cjs node.mjs AREA`. What a name server would do is done here.
const dns = require('node:dns')

const domain = process.env.E2B_DOMAIN.split(':')[0]
const found = dns.lookup
dns.lookup = (host, ...rest) => found(host.endsWith(domain) ? '127.0.0.1' : host, ...rest)
