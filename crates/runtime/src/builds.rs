//! What tenants build for themselves: found, kept, and what a server that was killed left of it.

use std::time::Duration;

use cabana_model::{BuildId, KeyId, SnapshotId, TemplateId, Tenant, Time};
use cabana_store::{Build, Built, Entry, KeptLayers, Layer, LeftBuild, ListedBuild, ListedTemplate, OwnTemplate, Tag};
use jiff::SignedDuration;
use uuid::Uuid;

use crate::{Error, Result, Runtime};

/// The note of a sandbox that is there for a build alone.
pub const BUILDING: &str = "build";
/// What a client hears of a build that nobody brings to its end.
const LEFT: &str =
    "the server was started again while it was built: build it once more, the steps that were done are kept";
/// The verb of the row that says how a build ended.
const ENDED: &str = "build.end";
/// Of one tenant.
const MOST_LAYERS: u32 = 64;
const LAYERS_KEPT: SignedDuration = SignedDuration::from_hours(14 * 24);

impl Runtime {
    /// Goes on without whoever asked for it, until it is done or the server ends.
    pub fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        let closing = self.0.closing.clone();
        self.0.tasks.spawn(async move {
            let _ = closing.run_until_cancelled(work).await;
        });
    }

    pub async fn own_template(&self, tenant: &Tenant, id: TemplateId) -> Result<OwnTemplate> {
        self.0.store.own_template(tenant, id).await?.ok_or(Error::NoOwnTemplate(id))
    }

    pub async fn own_template_named(&self, tenant: &Tenant, name: &str) -> Result<Option<OwnTemplate>> {
        Ok(self.0.store.own_template_named(tenant, name).await?)
    }

    pub async fn listed_template(&self, tenant: &Tenant, id: TemplateId) -> Result<ListedTemplate> {
        self.0.store.listed_template(tenant, id).await?.ok_or(Error::NoOwnTemplate(id))
    }

    /// By name.
    pub async fn listed_templates(&self, tenant: &Tenant) -> Result<Vec<ListedTemplate>> {
        Ok(self.0.store.listed_templates(tenant).await?)
    }

    pub async fn build(&self, tenant: &Tenant, id: BuildId) -> Result<Build> {
        self.0.store.build(tenant, id).await?.ok_or(Error::NoBuild(id))
    }

    /// Of a template, the newest first.
    pub async fn builds(&self, tenant: &Tenant, template: TemplateId) -> Result<Vec<ListedBuild>> {
        Ok(self.0.store.builds(tenant, template).await?)
    }

    pub async fn build_tags(&self, tenant: &Tenant, template: TemplateId) -> Result<Vec<Tag>> {
        Ok(self.0.store.build_tags(tenant, template).await?)
    }

    pub async fn tagged(&self, tenant: &Tenant, template: TemplateId, tag: &str) -> Result<Option<Build>> {
        Ok(self.0.store.tagged(tenant, template, tag).await?)
    }

    /// With the key that began it. A store that is away is asked until it is back.
    pub async fn end_build(&self, built: Built, key: KeyId) -> Result<()> {
        const AGAIN: Duration = Duration::from_millis(500);
        let (tenant, came) = (built.tenant.clone(), built.came.clone());
        let there = loop {
            let outcome = if built.came.is_ok() { "answered" } else { "failed" };
            let entry = self.entry_of_build(&tenant, built.id, key, outcome);
            match self.0.store.end_build(built.clone(), entry).await {
                Err(cabana_store::Error::Unavailable(_)) if self.closing_after(AGAIN).await => {}
                ended => break ended?,
            }
        };
        if let (false, Ok((_, Some(snapshot)))) = (there, came) {
            let loose = self.0.store.loose_snapshots().await?;
            let ours = loose.into_iter().filter(|(whose, id)| *whose == tenant && *id == snapshot);
            self.remove_loose(&tenant, ours.map(|(_, id)| id).collect()).await;
        }
        Ok(())
    }

    pub async fn layer(&self, tenant: &Tenant, build: BuildId, digest: [u8; 32]) -> Result<Option<Layer>> {
        Ok(self.0.store.layer(tenant, build, digest, self.0.clock.now()).await?)
    }

    pub async fn add_layer(&self, tenant: &Tenant, build: BuildId, digest: [u8; 32], layer: Layer) -> Result<()> {
        let now = self.0.clock.now();
        let since = now.saturating_sub(LAYERS_KEPT).unwrap_or(Time::MIN);
        let kept = KeptLayers { most: MOST_LAYERS, since };
        let loose = self.0.store.add_layer(tenant, build, digest, layer, now, kept).await?;
        self.remove_loose(tenant, loose).await;
        Ok(())
    }

    /// Snapshots of builds that no build refers to any more. What cannot be removed now is removed by the next server.
    pub(crate) async fn remove_loose(&self, tenant: &Tenant, loose: Vec<SnapshotId>) {
        for snapshot in loose {
            if let Err(error) = self.remove_built(tenant, snapshot).await {
                tracing::warn!(%snapshot, %error, "the files of a build that went could not be removed yet");
            }
        }
    }

    async fn remove_built(&self, tenant: &Tenant, id: SnapshotId) -> Result<()> {
        let Some(found) = self.0.store.any_snapshot(tenant, id).await? else { return Ok(()) };
        let words = vec![id.to_string(), "build".to_owned()];
        let entry = self.entry_of_none(tenant, KeyId::from(Uuid::nil()), "snapshot.delete", words);
        if !self.0.store.expire_snapshot(id, entry).await? {
            return Ok(()); // somebody else is at it
        }
        self.0.sandboxes.provider().remove_snapshot(found.physical).await?;
        self.0.sandboxes.went();
        Ok(self.0.store.forget_snapshot(tenant, id).await?)
    }

    /// No build of the last server goes on.
    pub(crate) async fn fail_left_builds(&self) -> Result<()> {
        let runtime = self.clone();
        let entry = move |left: &LeftBuild| {
            let key = left.key.unwrap_or(KeyId::from(Uuid::nil()));
            runtime.entry_of_build(&left.tenant, left.id, key, "failed")
        };
        self.0.store.fail_builds(LEFT, self.0.clock.now(), entry).await?;
        Ok(())
    }

    /// How a build ended.
    fn entry_of_build(&self, tenant: &Tenant, id: BuildId, key: KeyId, outcome: &str) -> Entry {
        Entry { outcome: outcome.to_owned(), ..self.entry_of_none(tenant, key, ENDED, vec![id.to_string()]) }
    }
}
