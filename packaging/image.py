#!/usr/bin/env python3
"""Makes an OCI image of the release's tarballs: one layer with the static program, one platform for each tarball.

usage: image.py FOLDER VERSION    (FOLDER holds sidecore-VERSION-*-musl.tar.gz)

Why here: an image with nothing but a program is four JSON files and a tar; no daemon and no root are needed to write it.
Must stay true: the same tarballs give the same image, byte for byte (SOURCE_DATE_EPOCH is its date). The result is a tar of an OCI
image layout, which `skopeo copy oci-archive:FILE docker://...`, `podman load` and `docker load` read.
Source: OCI image-spec 1.1, image-layout.md, manifest.md, config.md, image-index.md.
"""
import datetime
import glob
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

PLATFORMS = {"x86_64": "amd64", "aarch64": "arm64"}
SOURCE = "https://github.com/sidecore/sidecore"
# What `podman load` calls the image: the name that the documents use.
NAME = "ghcr.io/sidecore/sidecore:"


def entry(name, size=0, mode=0o644, kind=tarfile.REGTYPE):
    """A member of an archive that does not depend on this machine."""
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.type, info.mtime = size, mode, kind, EPOCH
    return info


def layer(archive, name):
    """The root of a container: the program, a folder for temporary files, and one to mount on."""
    buffer = io.BytesIO()
    with tarfile.open(archive) as source, tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as made:
        for folder, mode in (("tmp", 0o1777), ("run", 0o755), ("usr", 0o755), ("usr/bin", 0o755), ("mnt", 0o755)):
            made.addfile(entry(folder, mode=mode, kind=tarfile.DIRTYPE))
        program = source.extractfile(f"{name}/bin/sidecore").read()
        made.addfile(entry("usr/bin/sidecore", len(program), 0o755), io.BytesIO(program))
        for licence in ("LICENSE-MIT", "LICENSE-APACHE"):
            text = source.extractfile(f"{name}/share/doc/sidecore/{licence}").read()
            made.addfile(entry(licence, len(text)), io.BytesIO(text))
    return buffer.getvalue()


def compressed(data):
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, filename="") as file:
        file.write(data)
    return buffer.getvalue()


class Layout:
    """Blobs by their digests."""

    def __init__(self):
        self.blobs = {}

    def add(self, data, kind, **more):
        """Stores bytes, or a value as JSON; returns its descriptor."""
        if not isinstance(data, bytes):
            data = json.dumps(data, sort_keys=True, separators=(",", ":")).encode()
        digest = hashlib.sha256(data).hexdigest()
        self.blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data), **more}

    def write(self, path, index):
        files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index, sort_keys=True).encode()}
        files |= {f"blobs/sha256/{digest}": data for digest, data in self.blobs.items()}
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as made:
            for folder in ("blobs", "blobs/sha256"):
                made.addfile(entry(folder, mode=0o755, kind=tarfile.DIRTYPE))
            for name, data in sorted(files.items()):
                made.addfile(entry(name, len(data)), io.BytesIO(data))


def labels(version):
    prefix = "org.opencontainers.image."
    return {
        prefix + "title": "sidecore",
        prefix + "description": "Mounts, attaches and serves compressed disk images",
        prefix + "version": version,
        prefix + "licenses": "MIT OR Apache-2.0",
        prefix + "source": SOURCE,
    }


def main(folder, version):
    layout, manifests = Layout(), []
    created = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    archives = sorted(glob.glob(os.path.join(folder, f"sidecore-{version}-*-unknown-linux-musl.tar.gz")))
    if not archives:
        sys.exit(f"image: no tarball of {version} in {folder}; run `scripts/release tarball` first")
    for archive in archives:
        name = os.path.basename(archive).removesuffix(".tar.gz")
        machine = name.removeprefix(f"sidecore-{version}-").split("-")[0]
        platform = {"architecture": PLATFORMS[machine], "os": "linux"}
        root = layer(archive, name)
        # The default command serves an image: mounting needs devices that containers lack.
        settings = {"Entrypoint": ["/usr/bin/sidecore"], "Cmd": ["--help"], "Labels": labels(version)}
        settings["Env"] = ["PATH=/usr/bin"]
        config = {"created": created, **platform, "config": settings}
        config["rootfs"] = {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(root).hexdigest()]}
        config["history"] = [{"created": created, "created_by": "packaging/image.py"}]
        manifest = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json"}
        manifest["config"] = layout.add(config, "config.v1+json")
        manifest["layers"] = [layout.add(compressed(root), "layer.v1.tar+gzip")]
        manifest["annotations"] = labels(version)
        manifests.append(layout.add(manifest, "manifest.v1+json", platform=platform))
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    named = layout.add(index, "index.v1+json", annotations={"org.opencontainers.image.ref.name": NAME + version})
    if len(manifests) == 1:
        # Readers of one platform need no index of platforms.
        named = {**manifests[0], "annotations": named["annotations"]}
    path = os.path.join(folder, f"sidecore-{version}-oci.tar")
    layout.write(path, {"schemaVersion": 2, "mediaType": index["mediaType"], "manifests": [named]})
    print(path)


EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
if len(sys.argv) != 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
