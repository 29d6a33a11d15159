//! The script of a tour: its steps, the needs of each, and the statement that each proves.
//!
//! Why here: a script is data, which its readers check against the commands they know. Must stay
//! true: a script that names an unknown need, step or key is refused as a whole.

use crate::TourError;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A tour's steps and what they may need.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    #[serde(rename = "need", default)]
    pub(crate) needs: BTreeMap<String, Need>,
    /// Files that the steps find, by their names.
    #[serde(rename = "file", default)]
    pub(crate) files: BTreeMap<String, String>,
    #[serde(rename = "step")]
    pub(crate) steps: Vec<Step>,
}

/// Something that a machine may lack. Without any of the first three, a program of the need's name.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Need {
    /// Program that must be installed.
    pub(crate) program: Option<String>,
    /// Device that must open for reading and writing.
    pub(crate) device: Option<PathBuf>,
    /// Shell line that must succeed.
    pub(crate) check: Option<String>,
    /// The need in words; its name unless given.
    pub(crate) words: Option<String>,
    /// Sentence that says how to meet it, where no package does.
    pub(crate) remedy: Option<String>,
    /// The package that brings it in Debian; its name unless given.
    pub(crate) debian: Option<String>,
    /// The same in Fedora; Debian's unless given.
    pub(crate) fedora: Option<String>,
    /// The same in Alpine; Debian's unless given.
    pub(crate) alpine: Option<String>,
}

/// One step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Step {
    pub(crate) id: String,
    pub(crate) subject: String,
    pub(crate) title: String,
    /// Statement that holds where the step is done.
    pub(crate) proves: String,
    /// Steps whose results it uses.
    #[serde(default)]
    pub(crate) after: Vec<String>,
    /// True for a step of the whole tour only.
    #[serde(default)]
    pub(crate) full: bool,
    /// True for a step that needs the program's benches.
    #[serde(default)]
    pub(crate) bench: bool,
    /// Names for free loopback ports.
    #[serde(default)]
    pub(crate) ports: Vec<String>,
    pub(crate) picture: Option<Picture>,
    #[serde(rename = "way")]
    pub(crate) ways: Vec<Way>,
}

/// A picture that a command of the step draws.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Picture {
    /// SVG file in the tour's folder.
    pub(crate) file: String,
    pub(crate) label: String,
}

/// One way to take a step.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Way {
    #[serde(default)]
    pub(crate) needs: Vec<String>,
    /// Statement in place of the step's.
    pub(crate) proves: Option<String>,
    /// True if the commands run in a network namespace of their own.
    #[serde(default)]
    pub(crate) own_network: bool,
    pub(crate) run: Vec<Action>,
    /// Commands that undo its effects, however it ended.
    #[serde(default)]
    pub(crate) undo: Vec<String>,
}

/// One line of a way.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Action {
    /// A shell's line.
    Line(String),
    /// The same, and what is made of it.
    Command(Box<Command>),
    /// A byte of a file is inverted.
    Flip(Flip),
}

/// A shell's line, and what is made of its output.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Command {
    pub(crate) run: String,
    /// Lines of output on the screen, at most.
    pub(crate) show: Option<usize>,
    /// Words of the first line of output that is shown.
    pub(crate) from: Option<String>,
    /// Address at which the server listens; empty where its first line says `ready`.
    pub(crate) server: Option<String>,
    /// True if its first line of output stands on the page.
    #[serde(default)]
    pub(crate) figure: bool,
    /// Name of its speed of reading the sample.
    pub(crate) rate: Option<String>,
    /// JSON pointer to the sample's size.
    pub(crate) bytes: Option<String>,
    pub(crate) expect: Option<Expect>,
    /// Words that its output must have.
    pub(crate) says: Option<String>,
    /// Words of the refusal that must come.
    pub(crate) refused: Option<String>,
    /// True if an interruption waits for its end.
    #[serde(default)]
    pub(crate) hold: bool,
}

/// A number that JSON output must have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Expect {
    /// JSON pointer.
    pub(crate) at: String,
    pub(crate) is: u64,
}

/// A change of one byte.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flip {
    /// File in the tour's folder.
    pub(crate) flip: String,
    /// Offset in bytes.
    pub(crate) at: u64,
}

/// Needs that every script may name.
pub(crate) const BUILT_IN: [&str; 2] = ["root", "sample"];

impl Script {
    /// Reads a script.
    ///
    /// # Errors
    /// [`TourError::Script`] where it is no script, or names an unknown need or step.
    pub fn parse(text: &str) -> Result<Self, TourError> {
        let script: Self =
            toml::from_str(text).map_err(|error| TourError::Script(error.to_string()))?;
        let mut known: Vec<&str> = Vec::new();
        for step in &script.steps {
            let id = step.id.as_str();
            let wrong = |what: String| Err(TourError::Script(format!("step {id}: {what}")));
            // Steps run in their order: only earlier ones can have results.
            if let Some(after) = step.after.iter().find(|id| !known.contains(&id.as_str())) {
                return wrong(format!("no step {after} is before it"));
            }
            if known.contains(&id) || step.ways.is_empty() {
                return wrong("it stands twice, or has no way".to_owned());
            }
            let mut needs = step.ways.iter().flat_map(|way| &way.needs);
            let is_known = |need: &str| script.needs.contains_key(need) || BUILT_IN.contains(&need);
            if let Some(need) = needs.find(|need| !is_known(need)) {
                return wrong(format!("nothing says what {need} is"));
            }
            known.push(id);
        }
        Ok(script)
    }

    /// The subjects of all steps, each once, in the script's order.
    #[must_use]
    pub fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for step in &self.steps {
            if !subjects.contains(&step.subject.as_str()) {
                subjects.push(&step.subject);
            }
        }
        subjects
    }

    /// Every shell line, with the id of its step.
    #[must_use]
    pub fn lines(&self) -> Vec<(&str, &str)> {
        let mut lines = Vec::new();
        for step in &self.steps {
            for way in &step.ways {
                let run = way.run.iter().filter_map(Action::line);
                let all = run.chain(way.undo.iter().map(String::as_str));
                lines.extend(all.map(|line| (step.id.as_str(), line)));
            }
        }
        lines
    }
}

impl Action {
    fn line(&self) -> Option<&str> {
        match self {
            Self::Line(line) => Some(line),
            Self::Command(command) => Some(&command.run),
            Self::Flip(_) => None,
        }
    }
}
