//! The inner DNS: the parser alone, and the whole answerer with a world of its own outside.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use cabana_sandbox::{Holder, NetworkPolicy};
use tokio::{
    runtime::{Builder, Runtime},
    sync::watch,
};

use crate::{
    Event, Limits, Outside, Policy, Resolve, ResolveError,
    dns::{
        answer,
        message::{self, A, AAAA, Code, NoQuestion, PTR, Question, Record},
    },
    event::Reporter,
    gateway::Gateway,
    host::{Host, Name},
    lookup::{self, Lookup, Lookups},
    pace::Pace,
    queues::LongQueues,
    synthetic::{Behind, Pool},
};

thread_local! {
    static RUNTIME: Runtime = match Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("there is no runtime: {error}"),
    };
}

pub fn dns(bytes: &[u8]) {
    match message::parse(bytes) {
        Ok(question) => check_question(bytes, &question),
        Err(NoQuestion::Answer(answer)) => check_answer(bytes, &answer, 0),
        Err(NoQuestion::Silence) => assert!(bytes.len() < 12 || bytes[2] & 0x80 != 0, "a query is always answered"),
    }
    let listed = NetworkPolicy::Allow(vec!["*.example.com".into(), "a.com:443".into(), "10.0.0.0/8".into()]);
    for policy in [NetworkPolicy::Public, listed, NetworkPolicy::Off] {
        check_answerer(bytes, &policy);
    }
}

fn check_question(bytes: &[u8], question: &Question) {
    // The name is what the labels say: written again, it is the same bytes.
    let raw = &bytes[12..];
    if let Some(name) = &question.name {
        let labels = name.split('.').filter(|label| !label.is_empty());
        let wire: Vec<u8> = labels.flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat()).collect();
        assert_eq!(&raw[..wire.len()], wire, "the name {name:?} is another on the wire");
        assert_eq!(raw[wire.len()], 0);
    }
    let long = Host::parse(&["abcdefghi"; 25].join(".")).ok().and_then(|host| host.name().cloned());
    let records = [Record::A(Ipv4Addr::LOCALHOST), Record::Aaaa(Ipv6Addr::LOCALHOST)];
    let answer = question.answer(Code::NoError, &records[..1]);
    check_answer(bytes, &answer, 1);
    assert!(answer.len() <= 512);
    check_answer(bytes, &question.answer(Code::NoError, &records), 2);
    if let (Some(address), Some(long)) = (question.reversed(), long) {
        let answer = question.answer(Code::NoError, &[Record::Ptr(long)]);
        check_answer(bytes, &answer, 1);
        assert!(answer.len() <= 512);
        assert!(is_reverse_of(question.name.as_deref().unwrap_or_default(), address));
    }
}

/// The header, the question as it came, and as many records as it says, to the last byte.
fn check_answer(asked: &[u8], answer: &[u8], records: u16) {
    assert_eq!(answer[..2], asked[..2], "the answer to another question");
    assert_eq!(answer[2] & 0xfa, 0x80, "no answer, of another kind, or cut off");
    assert_eq!(answer[2] & 1, asked[2] & 1);
    let number = |at: usize| u16::from_be_bytes([answer[at], answer[at + 1]]);
    let (questions, answers) = (number(4), number(6));
    assert_eq!((answers, number(8), number(10)), (records, 0, 0));
    let mut at = 12;
    for _ in 0..questions {
        while answer[at] != 0 {
            at += 1 + usize::from(answer[at]);
        }
        at += 5;
    }
    assert_eq!(answer[12..at], asked[12..at], "the question was changed");
    for _ in 0..answers {
        assert_eq!(number(at), 0xc00c, "a record of another name");
        let (kind, length) = (number(at + 2), usize::from(number(at + 10)));
        assert!((kind, length) == (A, 4) || (kind, length) == (AAAA, 16) || kind == PTR);
        at += 12 + length;
    }
    assert_eq!(at, answer.len(), "bytes behind the last record");
    // Nor is an answer ever answered: two of us would never stop.
    assert_eq!(message::parse(answer), Err(NoQuestion::Silence));
}

fn is_reverse_of(name: &str, address: IpAddr) -> bool {
    let mut labels: Vec<String> = match address {
        IpAddr::V4(v4) => v4.octets().iter().map(u8::to_string).collect(),
        IpAddr::V6(v6) => {
            v6.octets().iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|n| format!("{n:x}")).collect()
        }
    };
    labels.reverse();
    labels.push(if address.is_ipv4() { "in-addr.arpa".into() } else { "ip6.arpa".into() });
    // `+4` and `004` are read as 4 too, and lead to the same name as 4.
    let plain = |text: &str| {
        let parts = text.split('.').map(|part| match part.trim_start_matches(['+', '0']) {
            "" => "0".to_owned(),
            rest => rest.to_ascii_lowercase(),
        });
        parts.collect::<Vec<_>>()
    };
    plain(name) == plain(&labels.join("."))
}

/// What a name that it answers with leads to, is what was asked, and may be reached.
fn check_answerer(bytes: &[u8], wanted: &NetworkPolicy) {
    let Ok(policy) = Policy::new(wanted, []) else { panic!("the policy of this target is in order") };
    let gateway = gateway(policy.clone());
    let Some(answered) = RUNTIME.with(|runtime| runtime.block_on(answer(&gateway, bytes))) else { return };
    check_answer(bytes, &answered, u16::from_be_bytes([answered[6], answered[7]]));
    let Ok(question) = message::parse(bytes) else { return };
    if answered[7] == 0 {
        return;
    }
    let address = match question.kind {
        A => IpAddr::from(last::<4>(&answered)),
        AAAA => IpAddr::from(last::<16>(&answered)),
        kind => panic!("a question of type {kind} has a record in its answer"),
    };
    let Ok(Host::Name(asked)) = Host::parse(question.name.as_deref().unwrap_or_default()) else {
        panic!("what is no name was answered with {address}")
    };
    let mut pool = gateway.pool.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(pool.behind(address), Behind::Name(asked.clone()));
    assert!(policy.decide_lookup(&asked).allowed, "{asked} may not be asked for");
    assert!(!inner(&asked) || matches!(wanted, NetworkPolicy::Allow(_)), "{asked} leads inside");
}

fn last<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.last_chunk().copied().unwrap_or([0; N])
}

fn gateway(policy: Policy) -> Gateway {
    let limits = Limits::default();
    let second = Duration::from_secs(1);
    let (_, policy) = watch::channel(Arc::new(policy));
    let (holder, of_all) = (Holder::tenant(""), Lookups::default());
    let long_queues = (LongQueues::default(), holder.clone());
    let bounds = lookup::Bounds { at_once: 16, holder, of_all, patience: second, fresh: second };
    Gateway {
        limits,
        policy,
        reporter: Reporter::new(Arc::new(|_: Event| ())),
        lookup: Lookup::new(Arc::new(World), bounds),
        connect: Outside::system().connect,
        long_queues,
        pool: Mutex::new(Pool::new(16)),
        questions: Pace::new(limits.questions_per_sec, limits.questions_per_sec),
    }
}

/// Names with a `p` in front are private addresses, those with an `m` are missing.
struct World;

fn inner(name: &Name) -> bool {
    name.as_str().starts_with('p')
}

#[async_trait]
impl Resolve for World {
    async fn resolve(&self, name: &Name) -> Result<Vec<IpAddr>, ResolveError> {
        match name.as_str().as_bytes()[0] {
            b'p' => Ok(vec![Ipv4Addr::new(10, 0, 0, 1).into()]),
            b'm' => Err(ResolveError::Missing),
            _ => Ok(vec![Ipv4Addr::new(8, 8, 8, 8).into()]),
        }
    }
}
