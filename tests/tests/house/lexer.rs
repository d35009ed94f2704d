//! Just enough of Rust's grammar to tell code from comments and literals, so that a word in prose is no finding.

/// The same text with comments, strings and characters blanked out. Lines stay where they were.
pub(crate) fn code_of(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match literal_or_comment(&chars, at) {
            Some(end) => end,
            None => {
                code.push(chars[at]);
                at += 1;
                continue;
            }
        };
        code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    code
}

/// Where the comment or literal that starts here ends.
fn literal_or_comment(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1);
    match chars[at] {
        '/' if next == Some(&'/') => Some(line_end(chars, at)),
        '/' if next == Some(&'*') => Some(block_end(chars, at)),
        '"' => Some(string_end(chars, at)),
        '\'' => char_end(chars, at),
        'r' if !inside_word(chars, at) => raw_end(chars, at),
        _ => None,
    }
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..].iter().position(|c| *c == '\n').map_or(chars.len(), |length| at + length)
}

/// Block comments nest.
fn block_end(chars: &[char], mut at: usize) -> usize {
    let mut depth = 0;
    while at < chars.len() {
        match chars[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at.min(chars.len())
}

fn string_end(chars: &[char], at: usize) -> usize {
    let mut at = at + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// `'a'` and `'\n'` are characters, `'a` is a lifetime.
fn char_end(chars: &[char], at: usize) -> Option<usize> {
    if chars.get(at + 1) == Some(&'\\') {
        let close = chars.get(at + 3..)?.iter().position(|c| *c == '\'')?;
        return Some(at + 3 + close + 1);
    }
    (chars.get(at + 2) == Some(&'\'')).then_some(at + 3)
}

fn raw_end(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None; // an identifier, plain or raw (`r#type`)
    }
    let mut end = open + 1;
    while end < chars.len() {
        if chars[end] == '"' && chars[end + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes {
            return Some(end + 1 + hashes);
        }
        end += 1;
    }
    Some(chars.len())
}

/// `r` at the end of `for` starts no raw string; the `r` of `br"…"` and `cr"…"` does.
fn inside_word(chars: &[char], at: usize) -> bool {
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let Some(before) = at.checked_sub(1) else { return false };
    let prefix = matches!(chars[before], 'b' | 'c') && !before.checked_sub(1).is_some_and(|i| is_word(&chars[i]));
    is_word(&chars[before]) && !prefix
}

/// The numbers of the lines (from 1) that hold the word, alone: `unsafe` is not in `unsafe_code`.
pub(crate) fn lines_with_word(text: &str, word: &str) -> Vec<usize> {
    text.lines().enumerate().filter(|(_, line)| holds_word(line, word)).map(|(at, _)| at + 1).collect()
}

fn holds_word(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(is_word)
            && !line[at + word.len()..].chars().next().is_some_and(is_word)
    })
}

#[test]
fn comments_and_literals_are_no_code() {
    let sample = [
        "// hidden",
        "/* hidden /* hidden */ hidden */",
        r#"let a = "hidden \" hidden";"#,
        r###"let b = r#"hidden " hidden"#;"###,
        r#"let c = br"hidden";"#,
        "let d = 'h';",
    ]
    .join("\n");
    let code = code_of(&sample);
    assert!(!code.contains("hidden"), "{code}");
    assert_eq!(code.lines().count(), 6);
    assert!(code.contains("let d ="));
}

#[test]
fn what_stands_beside_comments_and_literals_is_code() {
    let sample = "/* a */ seen /* b */\nlet x = \"\\\\\"; seen\nfn f<'a>(x: &'a str) { seen }\nlet q = '\"'; seen // no\n\
                  let n = '\\''; seen\nlet u = '\\u{41}'; seen\nfor r in x { seen }\nlet r#type = 1; seen";
    assert_eq!(lines_with_word(&code_of(sample), "seen"), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_word_is_found_only_alone() {
    assert_eq!(lines_with_word("unsafe_code\nnot_unsafe\n(unsafe)\nunsafe", "unsafe"), [3, 4]);
}
