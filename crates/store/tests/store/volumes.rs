use cabana_model::{VolumeId, VolumeName, VolumeState};
use cabana_store::{Error, Page, Volume};

use crate::stage::{Stage, at, tenant};

fn new(of: &str, name: &str) -> Volume {
    let (physical, state) = (VolumeId::now(), VolumeState::Making);
    Volume { tenant: tenant(of), name: VolumeName::new(name).unwrap(), physical, state, created: at(0) }
}

#[tokio::test]
async fn a_volume_is_there_when_it_is_ready_and_a_name_is_used_once() {
    let stage = Stage::new();
    let (us, volume) = (tenant("a"), new("a", "models"));
    assert!(stage.store.claim_volume(volume.clone()).await.unwrap());
    assert!(!stage.store.claim_volume(new("a", "models")).await.unwrap(), "it is taken, though it is not ready");
    assert_eq!(stage.store.volume(&us, &volume.name).await.unwrap(), None);
    let (making, ready) = (VolumeState::Making, VolumeState::Ready);
    let stepped = stage.store.step_volume(&us, &volume.name, making, ready).await.unwrap().unwrap();
    assert_eq!(stepped, Volume { state: ready, ..volume.clone() });
    assert_eq!(stage.store.step_volume(&us, &volume.name, making, ready).await.unwrap(), None);
    let stage = stage.again().await;
    assert_eq!(stage.store.volume(&us, &volume.name).await.unwrap(), Some(stepped));
    assert_eq!(stage.store.volume(&tenant("b"), &volume.name).await.unwrap(), None, "it is nobody else's");
    assert!(stage.store.claim_volume(new("b", "models")).await.unwrap(), "the name is the tenant's own");
    stage.store.forget_volume(volume.physical).await.unwrap();
    assert_eq!(stage.store.volume(&us, &volume.name).await.unwrap(), None);
    assert_eq!(stage.store.all_volumes().await.unwrap().len(), 1);
}

#[tokio::test]
async fn volumes_are_listed_by_name_page_by_page() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    for name in ["c", "a", "d", "b", "hidden"] {
        let volume = new("a", name);
        store.claim_volume(volume.clone()).await.unwrap();
        if name != "hidden" {
            store.step_volume(&us, &volume.name, VolumeState::Making, VolumeState::Ready).await.unwrap();
        }
    }
    let page = |after: Option<String>| Page { limit: 3, after };
    let first = store.volumes(&us, page(None)).await.unwrap();
    let names = |page: &[Volume]| page.iter().map(|volume| volume.name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(&first), ["a", "b", "c"]);
    assert_eq!(names(&store.volumes(&us, page(first.last().map(Volume::cursor))).await.unwrap()), ["d"]);
    assert_eq!(store.volumes(&us, page(Some("No Name".into()))).await, Err(Error::Cursor));
}

#[tokio::test]
async fn a_removal_that_failed_halfway_can_be_begun_again_and_its_volume_is_stored_till_then() {
    let stage = Stage::new();
    let (store, us, volume) = (&stage.store, tenant("a"), new("a", "models"));
    store.claim_volume(volume.clone()).await.unwrap();
    assert_eq!(store.begin_removal(&us, &volume.name).await.unwrap(), None, "it is not there yet");
    store.step_volume(&us, &volume.name, VolumeState::Making, VolumeState::Ready).await.unwrap();
    let going = Volume { state: VolumeState::Deleting, ..volume.clone() };
    let page = || Page { after: None, limit: 10 };
    for _ in 0..2 {
        assert_eq!(store.begin_removal(&us, &volume.name).await.unwrap(), Some(going.clone()));
        assert_eq!(store.volumes(&us, page()).await.unwrap(), []);
        assert_eq!(store.stored_volumes(&us, page()).await.unwrap(), std::slice::from_ref(&going));
    }
    store.forget_volume(volume.physical).await.unwrap();
    assert_eq!(store.begin_removal(&us, &volume.name).await.unwrap(), None);
}
