//! Files that change between the reading of their names and the reading of their contents.

use super::*;
use std::fs::{self, OpenOptions};

fn content(path: &Path) -> Content {
    let stat = rustix::fs::stat(path).unwrap();
    Content {
        id: 1,
        directory: 0,
        identity: identity(&stat),
        size_bytes: size_bytes(&stat),
        is_sparse: is_sparse(&stat),
    }
}

fn read(path: &Path, content: &Content) -> Result<Vec<u8>, InnerError> {
    let (folder, name) = Folder::of_file(path).unwrap();
    let mut reader = Reader::open(&folder, &name, path, content)?;
    let mut buffer = vec![0xEE; CHUNK_BYTES as usize];
    let mut bytes = Vec::new();
    while let Some(piece) = reader.next(&mut buffer)? {
        match piece {
            Piece::Hole(chunks) => bytes.resize(bytes.len() + (chunks * CHUNK_BYTES) as usize, 0),
            Piece::Bytes(len) => bytes.extend(&buffer[..len]),
        }
    }
    bytes.truncate(content.size_bytes as usize);
    Ok(bytes)
}

#[test]
fn a_file_that_grows_is_cut_where_it_ended() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    fs::write(&path, vec![7; 100_000]).unwrap();
    let before = content(&path);
    fs::write(&path, vec![7; 300_000]).unwrap();
    assert!(read(&path, &before).unwrap() == vec![7; 100_000]);
}

#[test]
fn a_file_that_becomes_shorter_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut");
    let sparse = directory.path().join("sparse");
    fs::write(&path, vec![7; 300_000]).unwrap();
    File::create(&sparse).unwrap().set_len(1 << 20).unwrap();
    for path in [path, sparse] {
        let before = content(&path);
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(100_000)
            .unwrap();
        let error = read(&path, &before).unwrap_err();
        assert!(matches!(error, InnerError::Changed { .. }), "{error}");
        assert!(error.to_string().contains(path.to_str().unwrap()));
    }
}

#[test]
fn another_file_in_its_place_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, b"mine").unwrap();
    let before = content(&path);
    fs::write(directory.path().join("other"), b"else").unwrap();
    fs::rename(directory.path().join("other"), &path).unwrap();
    assert!(matches!(
        read(&path, &before),
        Err(InnerError::Changed { .. })
    ));
    // Neither the target of a link nor a pipe is read; a pipe would block.
    fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    let error = read(&path, &before).unwrap_err();
    assert!(matches!(error, InnerError::Changed { .. }), "{error}");
    fs::remove_file(&path).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
    assert!(matches!(
        read(&path, &before),
        Err(InnerError::Changed { .. })
    ));
}

#[test]
fn holes_are_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(b"here", (1 << 29) + 5).unwrap();
    let content = content(&path);
    let (folder, name) = Folder::of_file(&path).unwrap();
    let mut reader = Reader::open(&folder, &name, &path, &content).unwrap();
    let mut buffer = vec![0xEE; CHUNK_BYTES as usize];
    let (mut holes, mut read) = (0, 0);
    while let Some(piece) = reader.next(&mut buffer).unwrap() {
        match piece {
            Piece::Hole(chunks) => holes += chunks,
            Piece::Bytes(_) => read += 1,
        }
    }
    assert_eq!((holes, read), ((1 << 30) / CHUNK_BYTES - 1, 1));
}
