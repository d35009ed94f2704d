//! Somebody who is told things by HTTP, on the machine's own loopback, and who answers as the test likes.

use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// For what has to come, on a loaded machine too.
const PATIENCE: Duration = Duration::from_secs(60);

/// How one request is answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With this status, and a header of this text if it is not empty.
    Status(u16, &'static str),
    /// With nothing, until the receiver is dropped.
    Nothing,
    /// The connection is closed at once.
    Close,
    /// With these very bytes.
    Bytes(Vec<u8>),
}

/// One request, as it came.
#[derive(Clone, Debug)]
pub struct Got {
    pub head: String,
    pub body: String,
}

impl Got {
    /// The value of this header, whose name is in small letters.
    pub fn header(&self, name: &str) -> Option<String> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    }
}

#[derive(Clone)]
pub struct Receiver {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    got: Mutex<Vec<Got>>,
    came: Condvar,
    answers: Mutex<VecDeque<Answer>>,
    usual: Mutex<Answer>,
}

impl Receiver {
    /// Answers everything with this, until it is told otherwise.
    pub fn start(usual: Answer) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let shared = Arc::new(Shared {
            got: Mutex::default(),
            came: Condvar::new(),
            answers: Mutex::default(),
            usual: Mutex::new(usual),
        });
        let receiver = Self { address: listener.local_addr()?, shared: shared.clone() };
        std::thread::spawn(move || {
            // Held open, those that are never answered.
            let mut silent = Vec::new();
            for stream in listener.incoming().flatten() {
                if let Ok(Some(stream)) = serve(stream, &shared) {
                    silent.push(stream);
                }
            }
        });
        Ok(receiver)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// The next requests are answered so, and those after them as usual.
    pub fn then(&self, answers: impl IntoIterator<Item = Answer>) {
        self.shared.answers.lock().unwrap_or_else(PoisonError::into_inner).extend(answers);
    }

    pub fn from_now_on(&self, usual: Answer) {
        *self.shared.usual.lock().unwrap_or_else(PoisonError::into_inner) = usual;
    }

    pub fn got(&self) -> Vec<Got> {
        self.shared.got.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// All that came, once it is so many. Blocks.
    ///
    /// # Panics
    ///
    /// If they do not come.
    pub fn wait_for(&self, count: usize) -> Vec<Got> {
        let until = Instant::now() + PATIENCE;
        let mut got = self.shared.got.lock().unwrap_or_else(PoisonError::into_inner);
        while got.len() < count {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{} of {count} have come: {got:?}", got.len());
            got = self.shared.came.wait_timeout(got, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        got.clone()
    }
}

fn serve(mut stream: TcpStream, shared: &Shared) -> io::Result<Option<TcpStream>> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
    let (head, mut body) = loop {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(None);
        }
        bytes.extend_from_slice(&part[..read]);
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break (String::from_utf8_lossy(&bytes[..end]).into_owned(), bytes[end + 4..].to_vec());
        }
    };
    let mut got = Got { head, body: String::new() };
    let length = got.header("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    while body.len() < length {
        let read = stream.read(&mut part)?;
        body.extend_from_slice(&part[..read]);
    }
    got.body = String::from_utf8_lossy(&body).into_owned();
    let answer = shared.answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let answer = answer.unwrap_or_else(|| shared.usual.lock().unwrap_or_else(PoisonError::into_inner).clone());
    shared.got.lock().unwrap_or_else(PoisonError::into_inner).push(got);
    shared.came.notify_all();
    match answer {
        Answer::Status(status, header) => {
            let header = if header.is_empty() { String::new() } else { format!("{header}\r\n") };
            write!(stream, "HTTP/1.1 {status} As Told\r\n{header}content-length: 0\r\nconnection: close\r\n\r\n")?;
            Ok(None)
        }
        Answer::Bytes(bytes) => stream.write_all(&bytes).map(|()| None),
        Answer::Close => Ok(None),
        Answer::Nothing => Ok(Some(stream)),
    }
}
