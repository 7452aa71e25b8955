//! Draws one chart as an SVG file.

use std::fmt::Display;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::chart::{Chart, Marks, PALETTE, Series};
use crate::page::visible;
use device::Role;

/// Size in pixels. Bars need more height if there are many.
const WIDTH: u32 = 960;
const HEIGHT: u32 = 560;
const BAR_HEIGHT: u32 = 44;
const LEGEND_LINE: i32 = 20;
/// The most points with names, and columns of a name.
const MOST_NAMES: usize = 24;
const NAME_COLUMNS: usize = 30;
/// The approximate width of a letter of the legend.
const LETTER: i32 = 7;
/// The library makes text smaller than its size by about a quarter.
const TEXT: i32 = 16;
const TITLE: i32 = 22;
const INK: RGBColor = RGBColor(0x1c, 0x1f, 0x24);
const GREY: RGBColor = RGBColor(0x6b, 0x72, 0x80);
const GRID: RGBColor = RGBColor(0xe2, 0xe5, 0xea);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plane<'a> = ChartContext<
    'a,
    SVGBackend<'a>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// The SVG, or why it cannot be drawn.
pub(crate) fn draw(chart: &Chart) -> Result<String, String> {
    let mut out = String::new();
    let height = match chart.marks {
        Marks::Bars => 180 + BAR_HEIGHT * chart.categories.len().max(3) as u32,
        _ => HEIGHT,
    };
    {
        let root = SVGBackend::with_string(&mut out, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(text)?;
        let root = root.titled(&chart.title, ("sans-serif", TITLE).into_font().color(&INK)).map_err(text)?;
        let (root, legend) = root.split_vertically(root.dim_in_pixel().1 as i32 - legend_height(chart));
        keys(chart, &legend)?;
        plot(chart, &root)?;
        root.present().map_err(text)?;
    }
    Ok(out.chars().map(visible).collect())
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn color(series: &Series) -> RGBColor {
    let code = PALETTE[series.color % PALETTE.len()].trim_start_matches('#');
    let part = |at: usize| u8::from_str_radix(&code[at..at + 2], 16).unwrap_or(0);
    RGBColor(part(0), part(2), part(4))
}

/// `7k`, `0.25`
fn number(value: &f64) -> String {
    match value.abs() {
        size if size >= 1e3 => compare::rate(*value),
        _ => format!("{}", (value * 1e6).round() / 1e6),
    }
}

/// The legend's entries with their positions, line by line.
fn placed(chart: &Chart) -> Vec<(&Series, i32, i32)> {
    let (mut x, mut y) = (60, 4);
    let mut placed = Vec::new();
    // Predicted parts of bars have the colours of their roles.
    let has_key =
        |series: &&Series| chart.marks != Marks::Bars || !series.special || series.color >= Role::ALL.len();
    for series in chart.series.iter().filter(has_key).filter(|series| !series.points.is_empty()) {
        let width = 32 + LETTER * series.name.chars().count() as i32;
        if x > 60 && x + width > WIDTH as i32 - 20 {
            (x, y) = (60, y + LEGEND_LINE);
        }
        placed.push((series, x, y));
        x += width;
    }
    placed
}

fn legend_height(chart: &Chart) -> i32 {
    placed(chart).last().map_or(0, |(_, _, y)| y + LEGEND_LINE + 8)
}

fn keys(chart: &Chart, area: &Area<'_>) -> Result<(), String> {
    let style = ("sans-serif", TEXT).into_font().color(&INK);
    for (series, x, y) in placed(chart) {
        area.draw(&Rectangle::new([(x, y + 3), (x + 11, y + 14)], color(series).filled())).map_err(text)?;
        area.draw(&Text::new(series.name.clone(), (x + 16, y + 2), style.clone())).map_err(text)?;
    }
    Ok(())
}

/// The ranges of both axes, from 0 where lengths are compared.
fn ranges(chart: &Chart) -> (Range<f64>, Range<f64>) {
    let stacked = stacked(chart);
    let all = || stacked.iter().flatten();
    let span = |of: &dyn Fn(&[f64; 4]) -> [f64; 2], from_zero: bool| {
        let values = || all().flat_map(of);
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        if !low.is_finite() || !high.is_finite() {
            return 0.0..1.0;
        }
        let low = if from_zero { 0.0 } else { low };
        let margin = (high - low).max(high.abs() * 1e-3).max(1e-9) * 0.06;
        (if from_zero { 0.0 } else { low - margin })..high + margin
    };
    let xs = |one: &[f64; 4]| [one[0], one[1]];
    let ys = |one: &[f64; 4]| [one[2], one[3]];
    match chart.marks {
        Marks::Points => (span(&xs, true), span(&ys, true)),
        Marks::Bars => (span(&xs, true), -0.5..chart.categories.len() as f64 - 0.5),
        Marks::Lines => (span(&xs, false), span(&ys, false)),
        Marks::Areas => (0.0..all().map(|one| one[1]).fold(1.0, f64::max), span(&ys, true)),
    }
}

/// By series and point: the extent from x to x and from y to y, parts of bars and areas stacked.
fn stacked(chart: &Chart) -> Vec<Vec<[f64; 4]>> {
    let mut ends: Vec<(String, f64, f64)> = Vec::new();
    let mut end = |stack: &str, at: f64, length: f64| {
        let known = ends.iter_mut().find(|(name, place, _)| name == stack && *place == at);
        match known {
            Some((_, _, end)) => {
                *end += length;
                (*end - length, *end)
            }
            None => {
                ends.push((stack.to_owned(), at, length));
                (0.0, length)
            }
        }
    };
    let mut sums: Vec<f64> = Vec::new();
    let mut extents = Vec::new();
    for series in &chart.series {
        let extent = |(at, point): (usize, &crate::chart::Point)| match chart.marks {
            Marks::Bars => {
                let (from, to) = end(&series.stack, point.y, point.x);
                [from, to, point.y, point.y]
            }
            Marks::Areas => {
                if at >= sums.len() {
                    sums.resize(at + 1, 0.0);
                }
                sums[at] += point.y;
                [point.x, point.x, sums[at] - point.y, sums[at]]
            }
            Marks::Points | Marks::Lines => [point.x, point.x, point.y, point.y],
        };
        extents.push(series.points.iter().enumerate().map(extent).collect());
    }
    extents
}

fn plot(chart: &Chart, root: &Area<'_>) -> Result<(), String> {
    let (x, y) = ranges(chart);
    let left = if chart.marks == Marks::Bars { 220 } else { 70 };
    let y = if chart.marks == Marks::Bars { y.end..y.start } else { y };
    let mut plane = ChartBuilder::on(root)
        .margin(12)
        .margin_right(28)
        .x_label_area_size(48)
        .y_label_area_size(left)
        .build_cartesian_2d(x, y)
        .map_err(text)?;
    let style = ("sans-serif", TEXT).into_font().color(&GREY);
    let mut mesh = plane.configure_mesh();
    mesh.axis_style(GRID).bold_line_style(GRID).light_line_style(TRANSPARENT).label_style(style.clone());
    mesh.x_label_formatter(&number).y_label_formatter(&number);
    mesh.x_desc(&chart.x).y_desc(&chart.y).axis_desc_style(style.clone());
    if chart.marks == Marks::Bars {
        mesh.disable_y_mesh().disable_y_axis();
    }
    mesh.draw().map_err(text)?;
    marks(chart, &mut plane, root)
}

fn marks<'a>(chart: &Chart, plane: &mut Plane<'a>, root: &Area<'a>) -> Result<(), String> {
    let extents = stacked(chart);
    let extent = plane.x_range();
    let label = ("sans-serif", TEXT).into_font().color(&INK);
    let stacks: Vec<&str> = chart.series.iter().fold(Vec::new(), |mut stacks, series| {
        if !stacks.contains(&series.stack.as_str()) {
            stacks.push(&series.stack);
        }
        stacks
    });
    let has_names = chart.series.iter().map(|series| series.points.len()).sum::<usize>() <= MOST_NAMES;
    let thickness = 0.8 / stacks.len().max(1) as f64;
    // In lines, the first series is drawn last: curves that nearly coincide stay visible below each other.
    let mut order: Vec<_> = chart.series.iter().zip(&extents).enumerate().collect();
    if chart.marks == Marks::Lines {
        order.reverse();
    }
    for (number, (series, extents)) in order {
        let fill = match chart.marks {
            Marks::Bars if series.special => color(series).stroke_width(1),
            _ => color(series).filled(),
        };
        let points = || series.points.iter().map(|point| (point.x, point.y));
        match chart.marks {
            Marks::Points => {
                if series.special {
                    let front = steps(&points().collect::<Vec<_>>());
                    plane
                        .draw_series([PathElement::new(front, color(series).stroke_width(2))])
                        .map_err(text)?;
                }
                plane.draw_series(points().map(|at| Circle::new(at, 5, fill))).map_err(text)?;
                let named = series.points.iter().filter(|_| has_names);
                let named = named.filter_map(|point| Some((point, point.text.first()?)));
                let names = named.map(|(point, name)| {
                    let is_right = point.x > extent.end - (extent.end - extent.start) / 4.0;
                    let (side, x) = if is_right { (HPos::Right, -9) } else { (HPos::Left, 9) };
                    let style = label.pos(Pos::new(side, VPos::Center));
                    EmptyElement::at((point.x, point.y))
                        + Text::new(compare::cut_middle(name, NAME_COLUMNS), (x, 0), style)
                });
                plane.draw_series(names).map_err(text)?;
            }
            Marks::Lines if series.special => {
                plane.draw_series(points().map(|at| Circle::new(at, 4, fill))).map_err(text)?;
            }
            Marks::Lines => {
                let line = PathElement::new(
                    points().collect::<Vec<_>>(),
                    color(series).stroke_width(2 + number as u32),
                );
                plane.draw_series([line]).map_err(text)?;
            }
            Marks::Bars => {
                let stack = stacks.iter().position(|stack| *stack == series.stack).unwrap_or(0);
                let offset = thickness * stack as f64 - 0.4;
                let bar = |style: ShapeStyle| {
                    move |[from, to, y, _]: &[f64; 4]| {
                        Rectangle::new([(*from, y + offset), (*to, y + offset + thickness * 0.9)], style)
                    }
                };
                if series.special {
                    let pale = color(series).mix(0.2).filled();
                    plane.draw_series(extents.iter().map(bar(pale))).map_err(text)?;
                }
                plane.draw_series(extents.iter().map(bar(fill))).map_err(text)?;
            }
            Marks::Areas => {
                // Live bytes stay until the next operation.
                let upper = steps(&extents.iter().map(|one| (one[0], one[3])).collect::<Vec<_>>());
                let lower = steps(&extents.iter().map(|one| (one[0], one[2])).collect::<Vec<_>>());
                let outline: Vec<(f64, f64)> = upper.into_iter().chain(lower.into_iter().rev()).collect();
                plane.draw_series([Polygon::new(outline, fill)]).map_err(text)?;
            }
        }
    }
    if chart.marks == Marks::Bars {
        for (at, name) in chart.categories.iter().enumerate() {
            let (x, y) = plane.backend_coord(&(0.0, at as f64));
            let (left, top) = root.get_base_pixel();
            let name = compare::cut_middle(name, NAME_COLUMNS);
            let style = label.pos(Pos::new(HPos::Right, VPos::Center));
            root.draw(&Text::new(name, (x - left - 8, y - top), style)).map_err(text)?;
        }
    }
    Ok(())
}

/// The points joined by horizontal and vertical lines.
fn steps(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut out: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        if let Some((_, before)) = out.last().copied() {
            out.push((*x, before));
        }
        out.push((*x, *y));
    }
    out
}
