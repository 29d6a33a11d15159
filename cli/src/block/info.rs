//! `sidecore block info`.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_block::format::lock::Slot;
use sidecore_block::overlay::tools::{self, Description};
use sidecore_block::pack::ImageInfo;
use sidecore_sys::text::bytes;
use std::path::PathBuf;

/// Arguments of `block info`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image to look at: a file or a URL; or an overlay
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    #[command(flatten)]
    access: super::image::AccessArgs,
    #[command(flatten)]
    memory: super::common::MemoryArgs,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        if tools::is_overlay_file(&self.image)? {
            return show_overlay(&tools::describe(&self.image)?, self.json);
        }
        let open = |bytes| self.access.open_to_look(&self.image, bytes);
        let index = self.memory.open(open)?.index;
        let info = ImageInfo::of(&index);
        if self.json {
            output::json(&info)?;
            return Ok(Outcome::Done);
        }
        output::line(&format!("format        {} ({})", info.format, info.variant))?;
        output::line(&format!("codec         {}", info.codec))?;
        let raw = bytes(info.raw_bytes);
        output::line(&format!("contents      {raw} ({} bytes)", info.raw_bytes))?;
        let stored = bytes(info.stored_bytes);
        output::line(&format!(
            "image         {stored} ({} bytes)",
            info.stored_bytes
        ))?;
        output::line(&format!("ratio         {:.2}:1", info.ratio))?;
        output::line(&format!(
            "frames        {} of {}{}, {} all zeros",
            info.frames,
            if index.is_even() { "" } else { "up to " },
            bytes(info.frame_bytes.into()),
            info.zero_frames
        ))?;
        if info.thin {
            let holes = info.frames - index.stored_frames();
            output::line(&format!(
                "holes         {holes} frames, which are not stored"
            ))?;
        }
        output::line(&format!("checksums     {}", info.checksums))?;
        if let (Some(cipher), Some(lock)) = (info.cipher, index.lock()) {
            let kinds = lock.slots().iter().map(|slot| match slot {
                Slot::X25519 { .. } => "a recipient",
                Slot::Passphrase { .. } => "a passphrase",
                Slot::Unknown(_) => "another kind",
            });
            let kinds = kinds.collect::<Vec<_>>().join(", ");
            output::line(&format!("encrypted     {cipher}, for {kinds}"))?;
        }
        if let Some(root) = &info.root_hash {
            let word = if index.is_trusted() {
                "trusted"
            } else {
                "claimed"
            };
            output::line(&format!("root hash     {root} ({word})"))?;
        }
        for key in &info.signed_by {
            output::line(&format!("signature     by {key}, if it is a valid one"))?;
        }
        output::line(&format!("index memory  {}", bytes(info.index_memory_bytes)))?;
        Ok(Outcome::Done)
    }
}

fn show_overlay(overlay: &Description, json: bool) -> Result<Outcome> {
    let state = match (overlay.in_use, overlay.frozen) {
        (true, _) => "a process has it open",
        (_, true) => "frozen: a clone stands on it",
        _ => "takes writes",
    };
    let parent = overlay
        .parent
        .as_ref()
        .map(|path| path.display().to_string());
    if json {
        output::json(&OverlayInfo {
            format: "overlay",
            raw_bytes: overlay.size_bytes,
            stored_bytes: overlay.stored_bytes,
            grain_bytes: overlay.grain_bytes,
            log_bytes: overlay.log_bytes,
            id: &overlay.id,
            frozen: overlay.frozen,
            encrypted: overlay.encrypted,
            in_use: overlay.in_use,
            parent,
            base: &overlay.base_name,
            base_identity: &overlay.base,
        })?;
        return Ok(Outcome::Done);
    }
    output::line(&format!(
        "format        overlay in grains of {}",
        bytes(overlay.grain_bytes.into())
    ))?;
    let size = bytes(overlay.size_bytes);
    output::line(&format!(
        "contents      {size} ({} bytes)",
        overlay.size_bytes
    ))?;
    if let Some(stored) = overlay.stored_bytes {
        output::line(&format!("stored        {} with its map", bytes(stored)))?;
    }
    output::line(&format!("state         {state}"))?;
    if overlay.encrypted {
        output::line("encrypted     with the key of its image")?;
    }
    if let Some(parent) = parent {
        output::line(&format!("stands on     {parent}"))?;
    }
    output::line(&format!("image         {}", overlay.base_name))?;
    Ok(Outcome::Done)
}

#[derive(serde::Serialize)]
struct OverlayInfo<'o> {
    format: &'static str,
    raw_bytes: u64,
    stored_bytes: Option<u64>,
    grain_bytes: u32,
    log_bytes: Option<u64>,
    id: &'o str,
    frozen: bool,
    encrypted: bool,
    in_use: bool,
    parent: Option<String>,
    base: &'o str,
    base_identity: &'o str,
}
