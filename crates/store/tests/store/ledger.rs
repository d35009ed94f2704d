use cabana_store::{
    Entry, Head, LedgerRow,
    ledger::{Broken, verify},
};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

use crate::stage::{Stage, call, chain, entry, tenant};

async fn written(rows: u64) -> (Vec<LedgerRow>, Head) {
    let stage = Stage::new();
    let us = tenant("a");
    for n in 0..rows {
        let call = call(&us);
        stage.store.note(Entry { duration_ms: n, ..entry(&call) }).await.unwrap();
    }
    let head = stage.store.ledger_head(&us).await.unwrap().unwrap_or_default();
    (chain(&stage.store, &us).await, head)
}

#[tokio::test]
async fn a_row_is_hashed_as_sorted_json_without_spaces_over_the_hash_before() {
    let (rows, head) = written(2).await;
    let json = serde_json::to_value(&rows[1]).unwrap();
    let mut fields = json.as_object().unwrap().clone();
    let hash = fields.remove("hash").unwrap();
    // serde_json's own maps are sorted.
    let text = serde_json::to_string(&fields).unwrap();
    assert_eq!(hash, format!("{:x}", Sha256::digest(&text)));
    assert_eq!(hash, serde_json::to_value(&head).unwrap()["hash"]);
    assert_eq!(json["prev"], serde_json::to_value(&rows[0]).unwrap()["hash"]);
    assert_eq!(json["time"], "2027-01-15T08:00:01Z");
    assert_eq!(serde_json::from_value::<LedgerRow>(json).unwrap(), rows[1]);
}

#[tokio::test]
async fn each_tenant_has_a_chain_of_its_own_that_goes_on_after_a_restart() {
    let mut stage = Stage::new();
    for round in 1..=3 {
        for name in ["a", "b"] {
            let us = tenant(name);
            stage.store.note(entry(&call(&us))).await.unwrap();
            let rows = chain(&stage.store, &us).await;
            let head = stage.store.ledger_head(&us).await.unwrap();
            assert_eq!(verify(rows.into_iter(), None, None).ok(), head);
            assert_eq!(head.unwrap().seq, round);
        }
        stage = stage.again().await;
    }
    assert_eq!(stage.store.tenants().await.unwrap(), [tenant("a"), tenant("b")]);
    assert_eq!(stage.store.ledger_head(&tenant("c")).await.unwrap(), None);
    let part = stage.store.ledger(&tenant("a"), 1, 1).await.unwrap();
    assert_eq!(part.iter().map(|row| row.seq).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn a_chain_is_verified_in_parts() {
    let (rows, head) = written(10).await;
    let half = verify(rows[..5].iter().cloned(), None, None).unwrap();
    assert_eq!(verify(rows[5..].iter().cloned(), Some(half.clone()), Some(&head)), Ok(head.clone()));
    let missing = verify(rows[6..].iter().cloned(), Some(half.clone()), None);
    assert_eq!(missing, Err(Broken::Missing { after: 5 }));
    assert_eq!(verify(std::iter::empty(), Some(half), Some(&head)), Err(Broken::CutOff { at: 5, head: 10 }));
    assert_eq!(verify(std::iter::empty(), None, None), Ok(Head::default()));
}

#[tokio::test]
async fn a_chain_written_anew_is_found_by_the_head_that_was_kept() {
    let (_, head) = written(4).await;
    let (forged, _) = written(6).await;
    assert!(verify(forged.iter().cloned(), None, None).is_ok(), "it is whole by itself");
    assert_eq!(verify(forged.into_iter(), None, Some(&head)), Err(Broken::Rewritten { seq: 4 }));
}

fn sealed(mut row: LedgerRow) -> LedgerRow {
    row.hash = [0; 32];
    row.hash = Sha256::digest(serde_json::to_string(&row).unwrap()).into();
    row
}

/// What somebody does to a chain.
#[derive(Clone, Debug)]
enum Tampering {
    Change {
        row: usize,
        field: usize,
    },
    /// And hashes it again.
    Forge {
        row: usize,
        field: usize,
    },
    Remove {
        row: usize,
    },
    Swap {
        row: usize,
        with: usize,
    },
    Double {
        row: usize,
    },
    CutOff {
        left: usize,
    },
}

fn change(row: &mut LedgerRow, field: usize) {
    match field {
        0 => row.argv.push(String::new()),
        1 => row.call = cabana_model::CallId::now(),
        2 => row.duration_ms += 1,
        3 => row.exit = None,
        4 => row.hash[31] ^= 1,
        5 => row.input_digest = None,
        6 => row.key = cabana_model::KeyId::now(),
        7 => row.outcome.push('x'),
        8 => row.output_digest = Some([0; 32]),
        9 => row.policy = Some(String::new()),
        10 => row.prev[0] ^= 1,
        11 => row.sandbox = Some(cabana_model::SandboxId::random()),
        12 => row.seq += 1,
        13 => row.tenant = tenant("b"),
        14 => row.time = crate::stage::at(9),
        _ => row.verb.clear(),
    }
}

const ROWS: usize = 12;

fn tampering() -> impl Strategy<Value = Tampering> {
    let row = || 0..ROWS;
    prop_oneof![
        (row(), 0..16_usize).prop_map(|(row, field)| Tampering::Change { row, field }),
        (row(), 0..16_usize).prop_map(|(row, field)| Tampering::Forge { row, field }),
        row().prop_map(|row| Tampering::Remove { row }),
        (row(), 1..ROWS).prop_map(|(row, by)| Tampering::Swap { row, with: (row + by) % ROWS }),
        row().prop_map(|row| Tampering::Double { row }),
        row().prop_map(|left| Tampering::CutOff { left }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_done_to_a_chain_is_found(what in tampering()) {
        let (mut rows, head) = CHAIN.clone();
        let whole = rows.len();
        match what {
            Tampering::Change { row, field } => change(&mut rows[row], field),
            Tampering::Forge { row, field } => {
                change(&mut rows[row], field);
                rows[row] = sealed(rows[row].clone());
                // A hash that is computed again is the right one.
                prop_assume!(field != 4);
            }
            Tampering::Remove { row } => drop(rows.remove(row)),
            Tampering::Swap { row, with } => rows.swap(row, with),
            Tampering::Double { row } => rows.insert(row, rows[row].clone()),
            Tampering::CutOff { left } => rows.truncate(left),
        }
        let found = verify(rows.clone().into_iter(), None, Some(&head));
        prop_assert!(found.is_err());
        match what {
            Tampering::Change { row, field } if field != 12 => {
                prop_assert_eq!(found, Err(Broken::Changed { seq: row as u64 + 1 }));
            }
            Tampering::Remove { row } if row + 1 < whole => {
                prop_assert_eq!(found, Err(Broken::Missing { after: row as u64 }));
            }
            Tampering::Double { row } => prop_assert_eq!(found, Err(Broken::Misplaced { seq: row as u64 + 1 })),
            Tampering::CutOff { left } => {
                prop_assert_eq!(found, Err(Broken::CutOff { at: left as u64, head: whole as u64 }));
                prop_assert!(verify(rows.into_iter(), None, None).is_ok(), "only the head shows it");
            }
            _ => {}
        }
    }
}

static CHAIN: std::sync::LazyLock<(Vec<LedgerRow>, Head)> = std::sync::LazyLock::new(|| {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(written(ROWS as u64))
});
