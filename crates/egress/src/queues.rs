//! How much of a connection into the world may wait in the kernel.
//!
//! A server that sends to a guest that does not read, or the other way round, fills the queues of all connections between them. The kernel
//! counts what waits of TCP for the whole machine (`tcp_mem`) and for no sandbox, and lets a queue grow to megabytes. So queues
//! are short here, and a connection that carries much has long ones while there is a place for one more of them: those are what
//! speed takes over a long way.

use cabana_sandbox::{Holder, Place, Places};
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// What the kernel gives a new connection by itself. It takes twice what it is told.
const SHORT: usize = 64 << 10;
const LONG: usize = 512 << 10;
/// What both queues of a long one hold at most.
pub const LONG_QUEUES_BYTES: usize = 2 * 2 * LONG;
/// In both directions.
const MUCH: usize = 256 << 10;

/// Which queues a connection has.
#[derive(Default)]
pub(crate) enum Queues {
    /// For good.
    #[default]
    Short,
    Lengthening {
        places: Places,
        holder: Holder,
        /// Since a place was asked for.
        carried: usize,
    },
    Long {
        _place: Place,
    },
}

impl Queues {
    pub(crate) fn lengthening(places: &Places, holder: &Holder) -> Queues {
        Queues::Lengthening { places: places.clone(), holder: holder.clone(), carried: 0 }
    }

    /// So many bytes more. Who finds no place has another look later.
    pub(crate) fn carry(&mut self, bytes: usize, stream: &TcpStream) {
        let Queues::Lengthening { places, holder, carried } = self else { return };
        *carried += bytes;
        if *carried < MUCH {
            return;
        }
        *carried = 0;
        if let Some(place) = places.take(holder) {
            set(stream, LONG);
            *self = Queues::Long { _place: place };
        }
    }
}

/// Not before it is connected: how long they can become is settled then.
pub(crate) fn shorten(stream: &TcpStream) {
    set(stream, SHORT);
}

/// As far as the machine lets who has no rights over it (`net.core.rmem_max`, `wmem_max`).
fn set(stream: &TcpStream, bytes: usize) {
    let received = sockopt::set_socket_recv_buffer_size_force(stream, bytes);
    let _ = received.or_else(|_| sockopt::set_socket_recv_buffer_size(stream, bytes));
    let sent = sockopt::set_socket_send_buffer_size_force(stream, bytes);
    let _ = sent.or_else(|_| sockopt::set_socket_send_buffer_size(stream, bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_carries_much_has_long_queues_while_there_are_places() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let places = Places::new(1);
        let connected = async || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            shorten(&stream);
            (stream, Queues::lengthening(&places, &Holder::tenant("one")))
        };
        let lengths = |stream: &TcpStream| {
            let received = sockopt::socket_recv_buffer_size(stream).unwrap();
            (received, sockopt::socket_send_buffer_size(stream).unwrap())
        };
        let (first, mut queues) = connected().await;
        assert_eq!(lengths(&first), (2 * SHORT, 2 * SHORT));
        queues.carry(MUCH - 1, &first);
        assert_eq!(lengths(&first), (2 * SHORT, 2 * SHORT));
        queues.carry(1, &first);
        let long = lengths(&first);
        assert!(long.0 > 2 * SHORT && long.1 > 2 * SHORT && long.0 + long.1 <= LONG_QUEUES_BYTES, "{long:?}");
        let (second, mut others) = connected().await;
        others.carry(2 * MUCH, &second);
        assert_eq!(lengths(&second), (2 * SHORT, 2 * SHORT), "there is one place");
        drop(queues);
        others.carry(MUCH, &second);
        assert_eq!(lengths(&second), long);
    }
}
