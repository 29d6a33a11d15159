//! A full screen that is drawn again and again until a key or a signal ends it.
//!
//! Must stay true: however it ends (a key, a signal, an error, a panic), the terminal is left as
//! it was; nothing that is drawn is longer or higher than the terminal.

use crate::{Table, Text, cut};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One picture.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// First lines, cut where the terminal is narrower.
    pub head: Vec<String>,
    /// Tables below them. Where there are fewer lines, each loses its last rows.
    pub tables: Vec<Table>,
    /// Lines below the tables, where there is room for them.
    pub tail: Text,
}

/// Draws what `next` makes, at once and `every` so often, until `q`, Esc, Ctrl-C, SIGINT, SIGTERM
/// or SIGHUP. Blocks.
///
/// # Errors
///
/// The terminal's, and those of `next`.
pub fn run<E: From<io::Error>>(
    every: Duration,
    mut next: impl FnMut() -> Result<View, E>,
) -> Result<(), E> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // Before the screen is taken: an error is then printed on a terminal as it was.
    let mut view = next()?;
    let mut terminal = ratatui::try_init()?;
    let _restored = Restored;
    loop {
        terminal.draw(|frame| {
            let area = frame.area();
            frame.render_widget(Paragraph::new(lines(&view, area.width, area.height)), area);
        })?;
        let until = Instant::now() + every;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Relaxed: a flag alone.
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if left.is_zero() {
                view = next()?;
                break;
            }
            if event::poll(left.min(LOOK))? {
                match event::read()? {
                    // Some terminals report releases, which are no second stroke.
                    Event::Key(key) if key.kind != KeyEventKind::Release => {
                        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
                        match key.code {
                            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                            KeyCode::Char('c') if is_control => return Ok(()),
                            _ => {}
                        }
                    }
                    // The same picture in the new size.
                    Event::Resize(..) => break,
                    _ => {}
                }
            }
        }
    }
}

/// Gives the terminal back, also where a picture cannot be made.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        // A closed terminal is not an error.
        ratatui::try_restore().ok();
    }
}

/// A view as the lines of a terminal of this size.
fn lines(view: &View, columns: u16, rows: u16) -> Vec<Line<'static>> {
    let (columns, rows) = (usize::from(columns), usize::from(rows));
    let plain = Style::default();
    let mut lines: Vec<(String, Style)> = Vec::new();
    let head_lines = if rows < LOW_ROWS { 1 } else { view.head.len() };
    for line in view.head.iter().take(head_lines) {
        lines.push((line.clone(), plain.add_modifier(Modifier::BOLD)));
    }
    // The last line names the key.
    let free = rows.saturating_sub(lines.len() + 1);
    let wanted: Vec<_> = view.tables.iter().map(|it| it.height()).collect();
    let shares = shares(&wanted, free);
    let spare = free.saturating_sub(shares.iter().sum());
    // Gaps stand only where no table loses a row by them.
    let has_gaps = spare >= shares.len();
    for (table, share) in view.tables.iter().zip(shares) {
        if has_gaps {
            lines.push((String::new(), plain));
        }
        let text = table.text(Some(columns));
        let whole: Vec<&str> = text.lines().collect();
        let all_rows = whole.len();
        // The last of its lines says how many rows are missing.
        let shown = if share < all_rows {
            share.saturating_sub(1)
        } else {
            share
        };
        for (at, line) in whole.iter().take(shown).enumerate() {
            let style = match at {
                0 => plain.add_modifier(Modifier::REVERSED),
                _ => plain,
            };
            lines.push(((*line).to_owned(), style));
        }
        if shown < all_rows && share > 0 {
            lines.push((format!("  and {} more", all_rows - shown), plain));
        }
    }
    let tail = view.tail.render(Some(columns));
    let room = rows.saturating_sub(lines.len() + 1);
    let tail: Vec<&str> = tail.lines().collect();
    if !tail.is_empty() && tail.len() < room {
        lines.push((String::new(), plain));
        lines.extend(tail.iter().map(|line| ((*line).to_owned(), plain)));
    }
    lines.truncate(rows.saturating_sub(1));
    lines.resize(rows.saturating_sub(1), (String::new(), plain));
    lines.push(("q ends".into(), plain.add_modifier(Modifier::DIM)));
    let line = |(text, style): (String, Style)| Line::styled(cut(&text, columns), style);
    lines.into_iter().map(line).collect()
}

/// Lines for each table of `free` ones: what it wants where that is possible, and else what the
/// smaller ones leave, in equal parts. A table with fewer than two lines has none.
fn shares(wanted: &[usize], free: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    // The smallest first: what they leave goes to the others.
    order.sort_by_key(|&at| wanted[at]);
    let mut shares = vec![0; wanted.len()];
    let mut left = free;
    for (done, &at) in order.iter().enumerate() {
        let fair = left / (wanted.len() - done);
        shares[at] = match wanted[at].min(fair) {
            0 | 1 => 0,
            share => share,
        };
        left -= shares[at];
    }
    shares
}

/// Rows below which the head has one line.
const LOW_ROWS: usize = 12;
/// Time within which a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Column;

    fn view(rows: usize) -> View {
        let mut table = Table::new([Column::left("NAME"), Column::right("CALLS").rank(1)]);
        for row in 0..rows {
            table.row([format!("name {row}"), "1".to_owned()]);
        }
        View {
            head: vec!["a daemon with a long line".into(), "second".into()],
            tables: vec![table.clone(), table],
            tail: Text::new(),
        }
    }

    #[test]
    fn each_size_is_filled_and_never_passed() {
        for columns in [10, 40, 80] {
            for rows in 1..30 {
                for many in [0, 1, 3, 100] {
                    let lines = lines(&view(many), columns, rows);
                    assert_eq!(lines.len(), usize::from(rows));
                    assert!(
                        lines
                            .iter()
                            .all(|line| line.width() <= usize::from(columns))
                    );
                }
            }
        }
    }

    #[test]
    fn tables_share_the_rows() {
        assert_eq!(shares(&[3, 100], 20), [3, 17]);
        assert_eq!(shares(&[100, 100], 20), [10, 10]);
        assert_eq!(shares(&[2, 2], 20), [2, 2]);
        assert_eq!(shares(&[5, 5], 2), [0, 2]);
        let text: Vec<String> = lines(&view(9), 80, 8)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(text[3], "  and 8 more", "{text:?}");
        assert_eq!(text[7], "q ends");
    }
}
