//! Option `--server-uid`: users whose servers the attaching commands trust.

use sidecore_attach::Trust;

/// Arguments of every command that attaches to a daemon or a stack.
#[derive(clap::Args)]
pub(crate) struct Server {
    /// Id of a user whose server is trusted besides this user's and root's; others are refused
    #[arg(long, value_name = "N")]
    server_uid: Vec<u32>,
}

impl Server {
    /// The users whose servers are trusted.
    pub(crate) fn trust(&self) -> Trust {
        Trust {
            uids: self.server_uid.clone(),
        }
    }
}
