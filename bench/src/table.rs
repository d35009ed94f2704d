//! The report as a table for a terminal: one line for each figure, and one for each of its goals.

use std::fmt::Write as _;

use crate::report::{Measured, Peer, Report, Verdict};

const HEAD: [&str; 7] = ["figure", "p50", "p99", "n", "floor p50", "ratio", "goal"];

pub(crate) fn table(report: &Report) -> String {
    let rows: Vec<_> = report.figures.iter().flat_map(rows).collect();
    let widths: Vec<usize> = (0..HEAD.len())
        .map(|i| rows.iter().map(|row| row[i].chars().count()).chain([HEAD[i].len()]).max().unwrap_or(0))
        .collect();
    let mut text = line(&HEAD.map(str::to_owned), &widths);
    for row in &rows {
        text.push_str(&line(row, &widths));
    }
    text.push_str(&peers(report));
    text
}

fn rows(figure: &Measured) -> Vec<[String; HEAD.len()]> {
    let unit = figure.unit.name();
    let number = |value: Option<f64>| value.map_or("-".into(), |value| format!("{} {unit}", short(value)));
    let mut rows = vec![[
        figure.name.to_owned(),
        number(figure.p50),
        number(figure.p99),
        figure.n.to_string(),
        number(figure.floor_p50),
        figure.ratio_to_floor.map_or("-".into(), |ratio| format!("{ratio:.2}")),
        String::new(),
    ]];
    for (i, verdict) in figure.details.goals.iter().enumerate() {
        if i > 0 {
            rows.push(Default::default());
        }
        rows[i][HEAD.len() - 1] = told(verdict);
    }
    rows
}

pub(crate) fn told(verdict: &Verdict) -> String {
    let (sign, value) = match (verdict.holds, verdict.value) {
        (Some(true), Some(value)) => ("holds ", short(value)),
        (Some(false), Some(value)) => ("MISSED", short(value)),
        _ => ("  ?   ", "not measured".into()),
    };
    format!("{sign} {}: {value}", verdict.goal)
}

/// Three digits that count.
pub(crate) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn peers(report: &Report) -> String {
    let mut text = String::new();
    for figure in &report.figures {
        for (name, peer) in &figure.peers {
            let value = match peer {
                Peer::P50(value) => format!("{} {}", short(*value), figure.unit.name()),
                Peer::Missing(why) => why.clone(),
            };
            let _ = writeln!(text, "{}: peer {name}: {value}", figure.name);
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let mut text = String::new();
    for (i, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let fill = " ".repeat(width - cell.chars().count());
        // Numbers to the right, words to the left.
        let numeric = (1..=5).contains(&i);
        let _ = if numeric { write!(text, "{fill}{cell}  ") } else { write!(text, "{cell}{fill}  ") };
    }
    format!("{}\n", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_tells_each_figure_its_goals_and_its_peers() {
        let text = table(&crate::report::tests::report());
        assert!(text.contains("holds  p50 at most 2 × floor: 1.60"), "{text}");
        assert!(text.contains("MISSED p99 at most 10 × p50: 15.0"), "{text}");
        assert!(text.contains("engine.exec: peer docker_exec: docker is not installed"), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits() {
        let values = [0.49, 1.2345, 77.3, 2345.6, 0.0021];
        assert_eq!(values.map(short), ["0.490", "1.23", "77.3", "2346", "0.002"]);
    }
}
