//! Tools that lock, map and rename files: git and sqlite.

use super::work;

#[tokio::test]
async fn git_commits_clones_packs_and_has_worktrees() {
    let script = r#"
        git config --global user.name N; git config --global user.email n@e.test; git config --global init.defaultBranch main
        git init -q one; cd one; for n in 1 2 3; do echo $n >f$n; git add f$n; git commit -qm "commit $n"; done
        git gc -q; git fsck --strict 2>/dev/null; git worktree add -q ../tree -b side; cd ../tree
        echo side >f1; git commit -qam side; cd ../one; git merge -q --no-edit side; git log -1 --format=%s
        cd; git clone -q file:///home/user/one two; cd two; git log --oneline | wc -l; cat f1
        echo back >f2; git commit -qam back; git push -q origin HEAD:refs/heads/back; git -C ../one show back:f2
        git stash list | wc -l; git grep -c back
    "#;
    assert_eq!(work(script).await, "side\n4\nside\nback\n0\nf2:1");
}

#[tokio::test]
async fn sqlite_writes_ahead_with_many_writers_and_locks_them_out_when_told() {
    let script = r#"
        sqlite3 t.db 'PRAGMA journal_mode=wal; CREATE TABLE t (writer, n);'
        writer() { for n in 1 2 3 4 5; do echo "INSERT INTO t VALUES ($1, $n);"; done | sqlite3 -cmd '.timeout 30000' t.db; }
        for w in 1 2 3 4; do writer $w & done; wait; sqlite3 t.db 'SELECT count(*), sum(n) FROM t; PRAGMA integrity_check;'
        coproc DB { sqlite3 t.db; }
        echo 'BEGIN EXCLUSIVE; SELECT 7;' >&"${DB[1]}"; read -r seven <&"${DB[0]}"
        sqlite3 t.db 'INSERT INTO t VALUES (0, 0);' 2>&1 || echo "refused at $seven"
        sqlite3 t.db 'SELECT count(*) FROM t'
    "#;
    let said = work(script).await;
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[..3], ["wal", "20|60", "ok"]);
    assert!(lines[3].contains("database is locked"), "{said}");
    assert_eq!(lines[4..], ["refused at 7", "20"]);
}
