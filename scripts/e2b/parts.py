"""A plugin of pytest: says of each test of the SDK's suite which part it belongs to, as a property in the JUnit file.

`core`, `more` (network, snapshots, forks) and `templates` talk to a server. `local` are the SDK's tests of itself."""

MORE = ("test_network", "test_internet_access", "test_snapshot_api", "test_fork", "test_snapshot_filesystem_only")
# Only the SDK's own half of a build, or all of the server made up.
NO_SERVER = ("test_stacktrace", "test_from_dockerfile", "test_to_dockerfile")
FROM_SERVER = {"sandbox", "async_sandbox", "sandbox_factory", "async_sandbox_factory", "build", "async_build", "git_sandbox"}


def part(item):
    asks = item.get_closest_marker("skip_debug") or FROM_SERVER & set(getattr(item, "fixturenames", ()))
    file = item.path.stem
    if not asks or file in NO_SERVER:
        return "local"
    if "template" in item.path.parent.name or "template" in item.path.parent.parent.name:
        return "templates"
    return "more" if file in MORE else "core"


def pytest_collection_modifyitems(items):
    for item in items:
        item.user_properties.append(("part", part(item)))
