//! Attributes of a layer's files on their way into an archive and out of it: in between, ids are those inside.
//!
//! Two kinds name ids of the host: rights of a program say in which user namespace they hold, and lists of access say whose
//! they are. An archive is a stranger's, so what comes out of one is taken apart and put together anew.

use cabana_sandbox::{Error, Result};

use crate::{
    IdMap,
    xattr::{ACCESS_LISTS, Attributes, CAPABILITY, is_of_layer},
};

/// Of the header of `security.capability`.
const REVISION_2: u32 = 0x0200_0000;
const REVISION_3: u32 = 0x0300_0000;
const EFFECTIVE: u32 = 1;
/// Without the id, which is the last number of revision 3.
const CAPABILITY_LENGTH: usize = 20;
const LIST_VERSION: u32 = 2;
/// Of a list of access. Those of the directories on the way to an entry wait together, since they would have a say in what is
/// made below.
pub(crate) const MAX_LIST: usize = 8 * 1024;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;

/// As they lie on disk, into an archive.
pub(crate) fn leaving(attributes: Attributes, ids: IdMap) -> Attributes {
    let converted = attributes.into_iter().filter_map(|(name, value)| {
        let value = match &name {
            name if *name == CAPABILITY => rights(&value, 0)?,
            name if ACCESS_LISTS.contains(&name.as_slice()) => list(&value, |id| Some(ids.inside(id)))?,
            _ => value,
        };
        Some((name, value))
    });
    converted.collect()
}

/// Out of an archive, as they are to lie on disk. What no layer has is left out; what cannot be is an error.
pub(crate) fn arriving(attributes: Vec<(Vec<u8>, Vec<u8>)>, ids: IdMap) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let damaged = || Error::Archive("an attribute of a file is damaged".into());
    let mut arrived = Vec::new();
    for (name, value) in attributes.into_iter().filter(|(name, value)| is_of_layer(name, value)) {
        let value = match &name {
            name if *name == CAPABILITY => rights(&value, ids.base).ok_or_else(damaged)?,
            name if ACCESS_LISTS.contains(&name.as_slice()) => list(&value, |id| ids.adopt(id)).ok_or_else(damaged)?,
            _ => value,
        };
        arrived.push((name, value));
    }
    Ok(arrived)
}

/// The same rights, for the user namespace whose root has this id.
fn rights(value: &[u8], root: u32) -> Option<Vec<u8>> {
    let head = number(value, 0)?;
    let fits = match head & !EFFECTIVE {
        REVISION_2 => value.len() == CAPABILITY_LENGTH,
        REVISION_3 => value.len() == CAPABILITY_LENGTH + 4,
        _ => false,
    };
    let sets = value.get(4..CAPABILITY_LENGTH).filter(|_| fits)?;
    let revision = if root == 0 { REVISION_2 } else { REVISION_3 };
    let mut rights = (revision | head & EFFECTIVE).to_le_bytes().to_vec();
    rights.extend_from_slice(sets);
    if root != 0 {
        rights.extend_from_slice(&root.to_le_bytes());
    }
    Some(rights)
}

/// The same list with other ids.
fn list(value: &[u8], id: impl Fn(u32) -> Option<u32>) -> Option<Vec<u8>> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != LIST_VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut list = version.to_vec();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let named = number(entry, 4)?;
        let named = if tag == USER || tag == GROUP { id(named)? } else { named };
        list.extend_from_slice(&entry[..4]);
        list.extend_from_slice(&named.to_le_bytes());
    }
    Some(list)
}

fn number(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDS: IdMap = IdMap { base: 0x7ffe_0000, count: 65_536 };

    fn numbers(all: &[u32]) -> Vec<u8> {
        all.iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    #[test]
    fn rights_hold_for_the_root_of_where_they_arrive() {
        let on_disk = numbers(&[0x0300_0001, 1 << 10, 0, 0, 0, IDS.base]);
        let packed = leaving(Attributes::from([(CAPABILITY.to_vec(), on_disk.clone())]), IDS);
        assert_eq!(packed[CAPABILITY], numbers(&[0x0200_0001, 1 << 10, 0, 0, 0]));
        let arrived = arriving(packed.into_iter().collect(), IDS).unwrap();
        assert_eq!(arrived, [(CAPABILITY.to_vec(), on_disk)]);
        // Who claims them for the host's root gets them for the sandbox's.
        let claimed = numbers(&[0x0300_0001, u32::MAX, 0, u32::MAX, 0, 0]);
        let arrived = arriving(vec![(CAPABILITY.to_vec(), claimed)], IDS).unwrap();
        assert_eq!(arrived[0].1, numbers(&[0x0300_0001, u32::MAX, 0, u32::MAX, 0, IDS.base]));
    }

    #[test]
    fn a_list_of_access_names_the_same_users_inside() {
        let entry = |tag: u32, id| numbers(&[tag | 7 << 16, id]);
        let on_disk = |id| [numbers(&[2]), entry(1, u32::MAX), entry(2, id), entry(8, id)].concat();
        let name = ACCESS_LISTS[0].to_vec();
        let packed = leaving(Attributes::from([(name.clone(), on_disk(IDS.base + 1000))]), IDS);
        assert_eq!(packed[&name], on_disk(1000));
        assert_eq!(arriving(packed.into_iter().collect(), IDS).unwrap()[0].1, on_disk(IDS.base + 1000));
    }

    #[test]
    fn what_is_no_such_attribute_is_refused_or_left_out() {
        for bad in [vec![], vec![1; 19], numbers(&[0x0100_0000, 0, 0]), numbers(&[0x0200_0001, 0, 0, 0, 0, 0])] {
            assert!(arriving(vec![(CAPABILITY.to_vec(), bad)], IDS).is_err());
        }
        for bad in [vec![], numbers(&[3]), numbers(&[2, 1])] {
            assert!(arriving(vec![(ACCESS_LISTS[1].to_vec(), bad)], IDS).is_err());
        }
        let names: [&[u8]; 6] = [
            b"trusted.overlay.opaque",
            b"security.selinux",
            b"user.overlay.redirect",
            b"user.overlay.origin",
            b"user.overlay.metacopy",
            b"user.overlay.whiteout",
        ];
        let foreign = names.map(|name| (name.to_vec(), b"y".to_vec()));
        assert_eq!(arriving(foreign.to_vec(), IDS).unwrap(), []);
        let kept = [&b"user.overlay.opaque"[..], b"user.overlay.overlay.opaque", b"user.mine"]
            .map(|n| (n.to_vec(), b"y".to_vec()));
        assert_eq!(arriving(kept.to_vec(), IDS).unwrap(), kept);
    }
}
