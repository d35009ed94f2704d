//! What the fuzz targets throw bytes at. Each function reads them as the guest's, and panics where what our parser makes of
//! them cannot be right: held against a second, slower reader, or against what must be true of whatever is accepted.

mod dns;
mod first_bytes;
mod http;
mod names;

pub use dns::dns;
pub use first_bytes::{client_hello, first_bytes, socks};
pub use http::{http_body, http_head};
pub use names::{hosts, rules};
