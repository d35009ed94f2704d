//! Templates of tenants: asked for, fed with files, tagged and removed. The steps between are the front's.

use bytes::Bytes;
use cabana_model::{BuildId, TemplateId};
use cabana_sandbox::Stream;
use cabana_store::NewBuild;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Act, Cx, Error, Needs, Result, uploads::Hash};

/// How many templates a tenant may have.
pub const MOST_TEMPLATES: u32 = 500;
/// How many tags a template may have: a list of them has no pages.
const MOST_TAGS: usize = 500;

fn digest_of(about: &impl std::fmt::Debug) -> [u8; 32] {
    Sha256::digest(format!("{about:?}")).into()
}

/// A build of a template that need not be there yet. It waits for its steps.
#[derive(Debug)]
pub struct Ask {
    pub name: String,
    /// What leads to it once it is ready.
    pub tags: Vec<String>,
    /// The front's.
    pub about: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    pub template: TemplateId,
    pub build: BuildId,
}

impl Act for Ask {
    const VERB: &'static str = "build.ask";
    type Answer = Asked;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(self)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.name.clone(), self.tags.join(",")]
    }

    /// The build has the call's own number.
    async fn run(self, cx: Cx) -> Result<Asked> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        cx.check_room()?;
        let Self { name, tags, about } = self;
        let (tenant, build, at) = (cx.caller.tenant.clone(), BuildId::from(cx.call.uuid()), cx.runtime.clock().now());
        let new = NewBuild { tenant: tenant.clone(), id: build, name, tags, about, at };
        let claimed = cx.runtime.store().claim_build(new, MOST_TEMPLATES).await?;
        let (template, loose) = claimed.ok_or(Error::TooManyTemplates(MOST_TEMPLATES))?;
        cx.runtime.remove_loose(&tenant, loose).await;
        Ok(Asked { template, build })
    }
}

/// A build that waits for its steps has them, and goes on without the client.
#[derive(Debug)]
pub struct Begin {
    pub template: TemplateId,
    pub build: BuildId,
}

impl Act for Begin {
    const VERB: &'static str = "build.begin";
    /// False: it was begun before, or is there no more.
    type Answer = bool;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(self)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.template.to_string(), self.build.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<bool> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        Ok(cx.runtime.store().begin_build(&cx.caller.tenant, self.build, cx.caller.key).await?)
    }
}

/// Files for a step, under the hash that the client gave them.
pub struct Upload {
    pub hash: Hash,
    pub body: Stream<Bytes>,
}

impl Act for Upload {
    const VERB: &'static str = "build.upload";
    type Answer = u64;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(&self.hash)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.hash.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<u64> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        cx.check_room()?;
        let kept = cx.runtime.keep_upload(&cx.caller.tenant, &self.hash, self.body);
        cx.cancel.clone().run_until_cancelled(kept).await.ok_or(Error::Cancelled)?
    }
}

/// From now on these lead to the build.
#[derive(Debug)]
pub struct Tag {
    pub build: BuildId,
    pub tags: Vec<String>,
}

impl Act for Tag {
    const VERB: &'static str = "build.tag";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(self)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.build.to_string(), self.tags.join(",")]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        let (store, tenant) = (cx.runtime.store(), &cx.caller.tenant);
        let build = store.build(tenant, self.build).await?.ok_or(Error::NoBuild(self.build))?;
        match store.tag_build(tenant, &build, self.tags, MOST_TAGS, cx.runtime.clock().now()).await? {
            true => Ok(()),
            false => Err(Error::TooManyTags(MOST_TAGS)),
        }
    }
}

/// From now on these lead nowhere.
#[derive(Debug)]
pub struct Untag {
    pub template: TemplateId,
    pub tags: Vec<String>,
}

impl Act for Untag {
    const VERB: &'static str = "build.untag";
    type Answer = usize;

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        true
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(self)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.template.to_string(), self.tags.join(",")]
    }

    async fn run(self, cx: Cx) -> Result<usize> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        let untagged = cx.runtime.store().untag(&cx.caller.tenant, self.template, self.tags).await?;
        cx.note(|notes| notes.is_void = untagged == 0);
        Ok(untagged)
    }
}

/// With all its builds. What was made from them stays as it is.
pub struct Remove(pub TemplateId);

impl Act for Remove {
    const VERB: &'static str = "build.remove";
    type Answer = ();

    fn needs(&self) -> Needs {
        Needs::Nothing
    }

    fn stores(&self) -> bool {
        false
    }

    fn removes(&self) -> bool {
        true
    }

    fn digest(&self) -> [u8; 32] {
        digest_of(&self.0)
    }

    fn argv(&self) -> Vec<String> {
        vec![self.0.to_string()]
    }

    async fn run(self, cx: Cx) -> Result<()> {
        cx.caller.require_all_users()?; // templates are for all users of the tenant
        let removed = cx.runtime.store().remove_own_template(&cx.caller.tenant, self.0).await?;
        let loose = removed.ok_or(Error::NoOwnTemplate(self.0))?;
        cx.runtime.remove_loose(&cx.caller.tenant, loose).await;
        Ok(())
    }
}
