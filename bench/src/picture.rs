//! The report as a picture: each figure beside its floor and its peers, on a logarithmic scale for each unit.

use std::fmt::Write as _;

use crate::{
    figure::Unit,
    report::{Measured, Peer, Report, Verdict},
    table::short,
};

const WIDTH: f64 = 1280.0;
const MARGIN: f64 = 28.0;
const BARS_LEFT: f64 = 255.0;
const BARS_RIGHT: f64 = 890.0;
const GOALS_LEFT: f64 = 985.0;
const BAR: f64 = 15.0;
const LINE: f64 = 19.0;
const GAP: f64 = 20.0;

const OURS: &str = "#0f766e";
const FLOOR: &str = "#a8b0bb";
const PEER: &str = "#c2620c";
const DOCKER: &str = "#7c4fc4";
const INK: &str = "#1f2937";
const FAINT: &str = "#6b7280";
const HOLDS: &str = "#15803d";
const MISSED: &str = "#b91c1c";

pub(crate) fn picture(report: &Report) -> String {
    let mut y = MARGIN + 26.0;
    let mut body = header(report, &mut y);
    for (unit, title) in [
        (Unit::Ms, "Time in milliseconds: less is better"),
        (Unit::MibPerSecond, "Throughput in MiB/s: more is better"),
        (Unit::Kib, "Memory and disk in KiB: less is better"),
        (Unit::Percent, "Processor time in percent: less is better"),
    ] {
        let figures: Vec<_> = report.figures.iter().filter(|figure| figure.unit == unit).collect();
        if let Some(scale) = Scale::of(&figures) {
            body.push_str(&panel(title, &figures, &scale, &mut y));
        }
    }
    let height = y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height:.0}\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"Inter, Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{body}</svg>\n"
    )
}

fn header(report: &Report, y: &mut f64) -> String {
    let machine = &report.machine;
    let mut text = Text::at(MARGIN, *y).size(22.0).bold().draw("Cabana, its floors and its peers");
    *y += 22.0;
    let about = format!(
        "{} · {} cores · Linux {} · {} · load {:.1} before, {:.1} after{}",
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.filesystem,
        machine.load_before,
        machine.load_after,
        if machine.optimised { "" } else { " · without optimisation" },
    );
    text.push_str(&Text::at(MARGIN, *y).fill(FAINT).draw(&about));
    *y += 26.0;
    text.push_str(&legend(*y));
    *y += 14.0;
    text
}

fn legend(y: f64) -> String {
    let entries = [(OURS, "Cabana"), (FLOOR, "floor"), (PEER, "bwrap"), (DOCKER, "docker")];
    let mut text = String::new();
    let mut x = MARGIN;
    for (color, name) in entries {
        text.push_str(&rect(x, y - 11.0, 14.0, 12.0, color));
        text.push_str(&Text::at(x + 20.0, y).draw(name));
        x += 40.0 + 8.0 * name.len() as f64;
    }
    text.push_str(&dashed(x + 6.0, y - 13.0, y + 3.0));
    text.push_str(&Text::at(x + 16.0, y).draw("goal"));
    text.push_str(&whisker(x + 72.0, x + 100.0, y - 5.0));
    text.push_str(&Text::at(x + 110.0, y).draw("p50 to p99"));
    text
}

fn panel(title: &str, figures: &[&Measured], scale: &Scale, y: &mut f64) -> String {
    *y += 34.0;
    let mut text = Text::at(MARGIN, *y).size(15.0).bold().draw(title);
    *y += 34.0;
    let top = *y - 10.0;
    let mut groups = String::new();
    for figure in figures {
        *y += 6.0;
        groups.push_str(&group(figure, scale, y));
        *y += GAP - 6.0;
    }
    text.push_str(&grid(scale, top, *y - 8.0));
    text.push_str(&groups);
    text
}

fn grid(scale: &Scale, top: f64, bottom: f64) -> String {
    let mut text = String::new();
    for power in scale.low..=scale.high {
        let value = 10f64.powi(power);
        let x = scale.x(value);
        let _ =
            writeln!(text, "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"#e5e7eb\"/>");
        text.push_str(&Text::at(x, top - 5.0).fill(FAINT).size(11.0).middle().draw(&tick(value)));
    }
    text
}

fn group(figure: &Measured, scale: &Scale, y: &mut f64) -> String {
    let top = *y;
    let mut text = Text::at(MARGIN, top + 12.0).bold().draw(figure.name);
    text.push_str(&Text::at(MARGIN, top + 28.0).fill(FAINT).size(11.0).draw(&beneath(figure)));
    let bars = bars(figure);
    for (i, bar) in bars.iter().enumerate() {
        text.push_str(&draw_bar(bar, scale, top + LINE * i as f64));
    }
    let rows = bars.len().max(figure.details.goals.len()).max(2);
    for (i, verdict) in figure.details.goals.iter().enumerate() {
        text.push_str(&goal(verdict, top + LINE * i as f64 + 12.0));
    }
    *y += LINE * rows as f64;
    text
}

fn beneath(figure: &Measured) -> String {
    match figure.ratio_to_floor {
        Some(ratio) if figure.details.floor != Some(figure.name) => {
            format!("{} × floor, n = {}", short(ratio), figure.n)
        }
        _ => format!("n = {}", figure.n),
    }
}

fn goal(verdict: &Verdict, y: f64) -> String {
    let (sign, color) = match verdict.holds {
        Some(true) => ("✓", HOLDS),
        Some(false) => ("✗", MISSED),
        None => ("?", FAINT),
    };
    let value = verdict.value.map_or("not measured".into(), short);
    Text::at(GOALS_LEFT, y).fill(color).size(12.0).draw(&format!("{sign} {}: {value}", verdict.goal))
}

struct Bar {
    name: String,
    color: &'static str,
    value: Option<f64>,
    /// Up to where the slow end reaches.
    p99: Option<f64>,
    /// Where it should end at most, or at least.
    goal: Option<f64>,
}

fn bars(figure: &Measured) -> Vec<Bar> {
    let is_floor = figure.name.starts_with("floor.");
    let own = if is_floor { ("this floor", FLOOR) } else { ("Cabana", OURS) };
    let goal = figure.details.goals.iter().find_map(|verdict| verdict.mark);
    let mut bars = vec![Bar { name: own.0.into(), color: own.1, value: figure.p50, p99: figure.p99, goal }];
    if let Some(floor) = figure.details.floor.filter(|floor| *floor != figure.name) {
        bars.push(Bar { name: floor.into(), color: FLOOR, value: figure.floor_p50, p99: None, goal: None });
    }
    for (name, summary) in &figure.details.also {
        // What lies beside the figure in the same unit, but is no other measure of it, would only stretch the scale.
        if !name.starts_with("mem_available") {
            let color = if name.contains("floor") || name.contains("plain") || is_floor { FLOOR } else { OURS };
            let name = name.replace('_', " ");
            bars.push(Bar { name, color, value: Some(summary.p50), p99: Some(summary.p99), goal: None });
        }
    }
    for (name, peer) in &figure.peers {
        let color = if name.starts_with("docker") { DOCKER } else { PEER };
        let value = match peer {
            Peer::P50(value) => Some(*value),
            Peer::Missing(_) => None,
        };
        bars.push(Bar { name: name.replace('_', " "), color, value, p99: None, goal: None });
    }
    bars
}

fn draw_bar(bar: &Bar, scale: &Scale, y: f64) -> String {
    let Some(value) = bar.value.filter(|value| *value > 0.0) else {
        let text = format!("{}: not measured", bar.name);
        return Text::at(BARS_LEFT + 4.0, y + 12.0).fill(FAINT).size(12.0).draw(&text);
    };
    let end = scale.x(value);
    let mut text = rect(BARS_LEFT, y, end - BARS_LEFT, BAR, bar.color);
    let mut after = end;
    if let Some(p99) = bar.p99.filter(|p99| *p99 > 0.0 && *p99 != value) {
        text.push_str(&whisker(end, scale.x(p99), y + BAR / 2.0));
        after = after.max(scale.x(p99));
    }
    if let Some(goal) = bar.goal {
        text.push_str(&dashed(scale.x(goal), y - 4.0, y + BAR + 3.0));
        after = after.max(scale.x(goal));
    }
    text + &Text::at(after + 7.0, y + 12.0).size(12.0).draw(&format!("{} {}", short(value), bar.name))
}

/// Whole powers of ten around all values of a panel.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn of(figures: &[&Measured]) -> Option<Self> {
        let bars = figures.iter().flat_map(|figure| bars(figure));
        let values = bars.flat_map(|bar| [bar.value, bar.p99, bar.goal]).flatten().filter(|value| *value > 0.0);
        let (low, high) = values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        if high == 0.0 {
            return None;
        }
        // A bar that ends where the scale begins could not be seen.
        let low = (low * 0.8).log10().floor() as i32;
        Some(Self { low, high: (high.log10().ceil() as i32).max(low + 1) })
    }

    fn x(&self, value: f64) -> f64 {
        let part = (value.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        BARS_LEFT + part * (BARS_RIGHT - BARS_LEFT)
    }
}

fn tick(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { format!("{value}") }
}

fn rect(x: f64, y: f64, width: f64, height: f64, color: &str) -> String {
    format!("<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" rx=\"2\" fill=\"{color}\"/>\n")
}

fn dashed(x: f64, top: f64, bottom: f64) -> String {
    format!(
        "<line x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{bottom:.1}\" stroke=\"{INK}\" stroke-width=\"1.5\" stroke-dasharray=\"3 2\"/>\n"
    )
}

fn whisker(from: f64, to: f64, y: f64) -> String {
    format!(
        "<path d=\"M{from:.1} {y:.1}H{to:.1}M{to:.1} {:.1}v8\" stroke=\"{INK}\" stroke-width=\"1.2\" fill=\"none\"/>\n",
        y - 4.0
    )
}

struct Text {
    x: f64,
    y: f64,
    size: f64,
    fill: &'static str,
    weight: &'static str,
    anchor: &'static str,
}

impl Text {
    fn at(x: f64, y: f64) -> Self {
        Self { x, y, size: 13.0, fill: INK, weight: "normal", anchor: "start" }
    }

    fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    fn fill(self, fill: &'static str) -> Self {
        Self { fill, ..self }
    }

    fn bold(self) -> Self {
        Self { weight: "600", ..self }
    }

    fn middle(self) -> Self {
        Self { anchor: "middle", ..self }
    }

    fn draw(self, text: &str) -> String {
        let Self { x, y, size, fill, weight, anchor } = self;
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" font-weight=\"{weight}\" text-anchor=\"{anchor}\" fill=\"{fill}\">{text}</text>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decade_is_as_wide_as_the_next() {
        let scale = Scale { low: -1, high: 1 };
        assert_eq!(scale.x(0.1), BARS_LEFT);
        assert_eq!(scale.x(10.0), BARS_RIGHT);
        assert!((scale.x(1.0) - (BARS_LEFT + BARS_RIGHT) / 2.0).abs() < 1e-9);
    }

    #[test]
    fn every_figure_is_in_the_picture_also_when_a_part_was_not_measured() {
        let report = crate::report::tests::report();
        let svg = picture(&report);
        for figure in &report.figures {
            assert!(svg.contains(figure.name), "{}", figure.name);
        }
        assert!(svg.contains("docker exec: not measured"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "no place on the scale is undefined");
    }
}
