//! Values that name variables.

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Name(&'a str),
}

/// A `$` that begins no name, or comes after a backslash, is a `$`.
pub(super) fn parts(value: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (Vec::new(), value);
    while let Some(at) = rest.find('$') {
        let (before, after) = (&rest[..at], &rest[at + 1..]);
        if let Some(before) = before.strip_suffix('\\') {
            parts.extend([Part::Text(before), Part::Text("$")]);
            rest = after;
            continue;
        }
        parts.push(Part::Text(before));
        // A brace is looked for no further than a name goes: there may be a `$` at each letter, and no brace at all.
        let braced =
            after.strip_prefix('{').map(split_name).and_then(|(name, left)| Some((name, left.strip_prefix('}')?)));
        let (name, left) = braced.filter(|(name, _)| is_name(name)).unwrap_or_else(|| split_name(after));
        parts.push(if is_name(name) { Part::Name(name) } else { Part::Text("$") });
        rest = if is_name(name) { left } else { after };
    }
    parts.push(Part::Text(rest));
    parts.retain(|part| *part != Part::Text(""));
    parts
}

fn split_name(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().take_while(|byte| in_name(*byte)).count())
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn is_name(name: &str) -> bool {
    name.bytes().next().is_some_and(|first| !first.is_ascii_digit()) && name.bytes().all(in_name)
}

#[cfg(test)]
mod tests {
    use super::{Part::*, *};

    #[test]
    fn names_are_told_from_text() {
        assert_eq!(parts("/opt/bin:$PATH"), [Text("/opt/bin:"), Name("PATH")]);
        assert_eq!(parts("${A}b$C"), [Name("A"), Text("b"), Name("C")]);
        assert_eq!(
            parts(r"\$A costs 5$ or $1"),
            [Text("$"), Text("A costs 5"), Text("$"), Text(" or "), Text("$"), Text("1")]
        );
        assert_eq!(parts("${not a name}"), [Text("$"), Text("{not a name}")]);
        assert_eq!(parts("${A"), [Text("$"), Text("{A")]);
        assert_eq!(parts("${}"), [Text("$"), Text("{}")]);
        assert!(parts("").is_empty());
        // Would take hours if each of them looked for its end among all.
        assert_eq!(parts(&"${".repeat(1 << 22)).len(), 2 << 22);
    }
}
