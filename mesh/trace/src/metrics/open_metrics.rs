//! OpenMetrics 1.0 text, as Prometheus reads it.
//!
//! Names follow the rules by which OpenTelemetry names become those of Prometheus: dots are underscores, the unit is the end of the
//! name, counters end in `_total`.

use std::fmt::Write as _;

use super::{About, Family, Point, Type};

/// The media type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes families, those that have no numbers yet by their names, and who speaks as `target_info`.
pub fn text(families: &[Family], target: &[(&'static str, String)]) -> String {
    let mut text = String::from("# TYPE target info\n# HELP target Who says this.\ntarget_info");
    labels(&mut text, target, None);
    text.push_str(" 1\n");
    for family in families {
        write_family(&mut text, family);
    }
    text.push_str("# EOF\n");
    text
}

fn write_family(text: &mut String, family: &Family) {
    let name = name_of(&family.about);
    let kind = match family.about.kind {
        Type::Counter => "counter",
        Type::Gauge => "gauge",
        Type::Histogram(_) => "histogram",
    };
    push(text, format_args!("# TYPE {name} {kind}\n"));
    if let Some(unit) = unit_of(family.about.unit) {
        push(text, format_args!("# UNIT {name} {unit}\n"));
    }
    push(text, format_args!("# HELP {name} {}\n", escaped(family.about.help)));
    for point in &family.points {
        match family.about.kind {
            Type::Counter => sample(text, &name, "_total", point, point.value),
            Type::Gauge => sample(text, &name, "", point, point.value),
            Type::Histogram(bounds) => histogram(text, &name, point, bounds),
        }
    }
}

fn sample(text: &mut String, name: &str, end: &str, point: &Point, value: f64) {
    text.push_str(name);
    text.push_str(end);
    labels(text, &point.labels, None);
    push(text, format_args!(" {value}\n"));
}

fn histogram(text: &mut String, name: &str, point: &Point, bounds: &[f64]) {
    let mut count = 0;
    for (at, bucket) in point.buckets.iter().enumerate() {
        count += bucket;
        let bound = bounds.get(at).map_or_else(|| "+Inf".to_owned(), |bound| format!("{bound:?}"));
        push(text, format_args!("{name}_bucket"));
        labels(text, &point.labels, Some(&bound));
        push(text, format_args!(" {count}\n"));
    }
    sample(text, name, "_count", point, count as f64);
    sample(text, name, "_sum", point, point.value);
}

fn labels(text: &mut String, labels: &[(&'static str, String)], bound: Option<&str>) {
    let written = labels.iter().map(|(name, value)| (*name, value.as_str())).chain(bound.map(|bound| ("le", bound)));
    let mut is_first = true;
    for (name, value) in written {
        let between = if std::mem::take(&mut is_first) { '{' } else { ',' };
        push(text, format_args!("{between}{}=\"{}\"", name.replace('.', "_"), escaped(value)));
    }
    if !is_first {
        text.push('}');
    }
}

fn push(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a String takes everything");
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// The name in Prometheus, without `_total` and the ends of histograms.
pub fn name_of(about: &About) -> String {
    let name = about.name.replace('.', "_");
    match unit_of(about.unit) {
        Some(unit) => format!("{name}_{unit}"),
        None => name,
    }
}

fn unit_of(unit: &str) -> Option<&str> {
    match unit {
        "s" => Some("seconds"),
        "By" => Some("bytes"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_written_as_openmetrics_wants_it() {
        const BOUNDS: [f64; 2] = [0.5, 1.0];
        let about = |name, unit, kind| About { name, unit, help: "Says \"x\".", kind };
        let agent = |value: &str| vec![("gen_ai.agent.name", value.to_owned())];
        let families = [
            Family { about: about("a.b", "{x}", Type::Counter), points: vec![Point::new(3.0, agent("q\"\n"))] },
            Family { about: about("c", "By", Type::Gauge), points: vec![Point::new(1.5, vec![])] },
            Family {
                about: about("d", "s", Type::Histogram(&BOUNDS)),
                points: vec![Point { labels: agent("z"), value: 2.25, buckets: vec![1, 2, 1] }],
            },
            Family { about: about("unused", "{x}", Type::Counter), points: vec![] },
        ];
        let expected = "\
# TYPE target info
# HELP target Who says this.
target_info{service_name=\"towline\"} 1
# TYPE a_b counter
# HELP a_b Says \\\"x\\\".
a_b_total{gen_ai_agent_name=\"q\\\"\\n\"} 3
# TYPE c_bytes gauge
# UNIT c_bytes bytes
# HELP c_bytes Says \\\"x\\\".
c_bytes 1.5
# TYPE d_seconds histogram
# UNIT d_seconds seconds
# HELP d_seconds Says \\\"x\\\".
d_seconds_bucket{gen_ai_agent_name=\"z\",le=\"0.5\"} 1
d_seconds_bucket{gen_ai_agent_name=\"z\",le=\"1.0\"} 3
d_seconds_bucket{gen_ai_agent_name=\"z\",le=\"+Inf\"} 4
d_seconds_count{gen_ai_agent_name=\"z\"} 4
d_seconds_sum{gen_ai_agent_name=\"z\"} 2.25
# TYPE unused counter
# HELP unused Says \\\"x\\\".
# EOF
";
        assert_eq!(text(&families, &[("service.name", "towline".to_owned())]), expected);
    }
}
