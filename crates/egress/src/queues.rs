//! How much of a connection into the world may wait in the kernel.
//!
//! A server that sends to a guest that does not read, or the other way round, fills the queues of all connections between them. The kernel
//! counts what waits of TCP for the whole machine (`tcp_mem`) and for no sandbox, and lets a queue grow to megabytes. So queues
//! are short here, and shorter where many connections are open: there are places for what all of them can hold, and a connection that
//! finds none is refused. One that carries much has long ones in the world while there is a place for one more of them: those are what
//! speed takes over a long way.

use cabana_sandbox::{Holder, Place, Places};
use rustix::net::sockopt;
use tokio::net::TcpStream;

/// The kernel takes twice what it is told. On loopback a packet has 64 KiB: with less than this nothing gets on there, and no less is held.
const SHORTEST: usize = 32 << 10;
/// What the kernel gives a new connection by itself: as much as two places are for.
const SHORT: usize = 2 * SHORTEST;
const LONG: usize = 512 << 10;
/// What a place for short queues is for: both queues of both ends, of which one is the guest's and one in the world.
pub const SHORTEST_QUEUES_BYTES: usize = 2 * 2 * 2 * SHORTEST;
/// Of what is left to a sandbox, by one connection.
const PART: usize = 16;
/// What both queues of a long one hold at most.
pub const LONG_QUEUES_BYTES: usize = 2 * 2 * LONG;
/// In both directions.
const MUCH: usize = 256 << 10;

/// For connections that carry much.
#[derive(Clone, Debug)]
pub struct LongQueues {
    /// One that finds none is slower over a long way.
    pub places: Places,
    /// Has the peer send as much as the queue holds (`TCP_WINDOW_CLAMP`): once its length was set, the kernel offers no more than
    /// it held in the beginning. For such a call this crate has no words.
    pub widen: fn(&TcpStream, usize),
}

impl Default for LongQueues {
    fn default() -> LongQueues {
        LongQueues { places: Places::default(), widen: |_, _| () }
    }
}

/// Which queues a connection has.
#[derive(Default)]
pub(crate) enum Queues {
    /// For good.
    #[default]
    Short,
    Lengthening {
        long: LongQueues,
        holder: Holder,
        /// Since a place was asked for.
        carried: usize,
    },
    Long {
        _place: Place,
    },
}

impl Queues {
    pub(crate) fn lengthening(long: &LongQueues, holder: &Holder) -> Queues {
        Queues::Lengthening { long: long.clone(), holder: holder.clone(), carried: 0 }
    }

    /// So many bytes more. Who finds no place has another look later.
    pub(crate) fn carry(&mut self, bytes: usize, stream: &TcpStream) {
        let Queues::Lengthening { long, holder, carried } = self else { return };
        *carried += bytes;
        if *carried < MUCH {
            return;
        }
        *carried = 0;
        if let Some(place) = long.places.take(holder) {
            set(stream, LONG);
            (long.widen)(stream, LONG);
            *self = Queues::Long { _place: place };
        }
    }
}

/// Of a guest that is connected, as long as it is. `None`: there is no room for what could wait.
pub(crate) fn bound(guest: &TcpStream, places: &Places, holder: &Holder) -> Option<Place> {
    let place = places.take_part(holder, PART, SHORT / SHORTEST)?;
    set(guest, place.count() * SHORTEST);
    Some(place)
}

/// Those of the world as those of the guest are.
pub(crate) fn bound_as(guest: &TcpStream, stream: &TcpStream) {
    if let Ok(doubled) = sockopt::socket_recv_buffer_size(guest) {
        set(stream, (doubled / 2).clamp(SHORTEST, SHORT));
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
    async fn queues_are_shorter_where_many_are_open_and_one_that_finds_no_room_is_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let places = Places::new(64);
        let holder = Holder::tenant("one");
        let mut open = Vec::new();
        let mut lengths = Vec::new();
        loop {
            let guest = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let Some(place) = bound(&guest, &places, &holder) else { break };
            let world = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            shorten(&world);
            bound_as(&guest, &world);
            let [ours, theirs] = [&guest, &world].map(|stream| {
                let received = sockopt::socket_recv_buffer_size(stream).unwrap();
                (received, sockopt::socket_send_buffer_size(stream).unwrap())
            });
            assert_eq!(ours, theirs);
            lengths.push(ours);
            open.push((guest, world, place));
        }
        let held: usize = lengths.iter().map(|(received, sent)| 2 * (received + sent)).sum();
        assert_eq!(held, 48 * SHORTEST_QUEUES_BYTES, "three quarters of what there is");
        assert_eq!((lengths[0], lengths.last()), ((2 * SHORT, 2 * SHORT), Some(&(2 * SHORTEST, 2 * SHORTEST))));
        drop(open);
        let guest = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert_eq!(bound(&guest, &places, &holder).map(|place| place.count()), Some(2));
    }

    #[tokio::test]
    async fn what_carries_much_has_long_queues_while_there_are_places() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let long = LongQueues { places: Places::new(1), ..LongQueues::default() };
        let connected = async || {
            let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            shorten(&stream);
            (stream, Queues::lengthening(&long, &Holder::tenant("one")))
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
        let now = lengths(&first);
        assert!(now.0 > 2 * SHORT && now.1 > 2 * SHORT && now.0 + now.1 <= LONG_QUEUES_BYTES, "{now:?}");
        let (second, mut others) = connected().await;
        others.carry(2 * MUCH, &second);
        assert_eq!(lengths(&second), (2 * SHORT, 2 * SHORT), "there is one place");
        drop(queues);
        others.carry(MUCH, &second);
        assert_eq!(lengths(&second), now);
    }
}
