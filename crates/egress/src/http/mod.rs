//! HTTP/1 as a proxy must read it: strictly, one request for each connection.

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod proxy;
