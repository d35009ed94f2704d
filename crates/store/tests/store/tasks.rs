use cabana_model::{SandboxId, TaskId, TaskState};
use cabana_store::{Error, Inline, Page, TaskEnd};

use crate::stage::{Stage, at, call, chain, entry, task, tenant};

fn end(id: TaskId, state: TaskState) -> TaskEnd {
    let inline = Some(Inline { stdout: "out".into(), stderr: "err".into() });
    TaskEnd { id, state, exit: Some("{\"code\":0}".into()), inline, at: at(5) }
}

#[tokio::test]
async fn a_task_ends_once_and_cancelled_stays_cancelled() {
    let stage = Stage::new();
    let us = tenant("a");
    let call = call(&us);
    let new = task(&call, &SandboxId::random());
    stage.store.add_task(new.clone()).await.unwrap();
    assert_eq!(stage.store.open_tasks().await.unwrap().len(), 1);
    let stage = stage.again().await;
    let store = &stage.store;
    assert_eq!(store.task(&us, new.id).await.unwrap().unwrap().state, TaskState::Running);
    assert_eq!(store.end_task(end(new.id, TaskState::Cancelled), entry(&call)).await, Ok(true));
    assert_eq!(store.end_task(end(new.id, TaskState::Succeeded), entry(&call)).await, Ok(false));
    let ended = store.task(&us, new.id).await.unwrap().unwrap();
    assert_eq!((ended.state, ended.ended), (TaskState::Cancelled, Some(at(5))));
    assert_eq!((ended.exit, ended.inline), (end(new.id, TaskState::Cancelled).exit, end(new.id, ended.state).inline));
    assert_eq!(chain(store, &us).await.len(), 1);
    assert!(store.open_tasks().await.unwrap().is_empty());
    let nobody = store.end_task(end(TaskId::now(), TaskState::Failed), entry(&call)).await;
    assert!(matches!(nobody, Err(Error::Refused(_))));
    assert_eq!(chain(store, &us).await.len(), 1);
    assert_eq!(store.task(&tenant("b"), new.id).await.unwrap(), None, "it is nobody else's");
}

#[tokio::test]
async fn tasks_are_listed_newest_first_by_sandbox_and_state() {
    let Stage { store, dir: _dir } = Stage::new();
    let us = tenant("a");
    let call = call(&us);
    let boxes = [SandboxId::random(), SandboxId::random()];
    let mut made = Vec::new();
    for n in 0..12 {
        let new = task(&call, &boxes[n % 2]);
        store.add_task(new.clone()).await.unwrap();
        if n < 6 {
            store.end_task(end(new.id, TaskState::Failed), entry(&call)).await.unwrap();
        }
        made.push(new.id);
    }
    made.reverse();
    let list = async |sandbox: Option<&SandboxId>, state, limit, after| {
        let tasks = store.tasks(&us, None, sandbox, state, Page { limit, after }).await.unwrap();
        tasks.into_iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!(list(None, None, 100, None).await, made);
    assert_eq!(list(None, None, 5, Some(made[3].to_string())).await, made[4..9]);
    assert_eq!(list(None, Some(TaskState::Failed), 100, None).await, made[6..]);
    assert_eq!(list(Some(&boxes[1]), Some(TaskState::Running), 100, None).await, [made[0], made[2], made[4]]);
    let page = Page { limit: 7, after: Some("x".into()) };
    assert_eq!(store.tasks(&us, None, None, None, page).await, Err(Error::Cursor));
}
