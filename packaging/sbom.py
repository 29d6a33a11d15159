#!/usr/bin/env python3
"""Writes the bill of materials of the program `sidecore`: every crate that is linked into it, as CycloneDX 1.5.

usage: sbom.py FILE    (in the repository's root; asks `cargo metadata`)

Must stay true: the same Cargo.lock gives the same file, byte for byte; crates that only tests or builds use are left out.
Source: CycloneDX 1.5, https://cyclonedx.org/docs/1.5/json/; purl specification, type cargo.
"""
import datetime
import json
import os
import re
import subprocess
import sys
import uuid

PROGRAM = "sidecore-cli"


def metadata():
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--manifest-path", "cli/Cargo.toml"]
    command += ["--no-default-features", "--filter-platform", "x86_64-unknown-linux-musl"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def checksums():
    text = open("Cargo.lock", encoding="utf-8").read()
    entry = r'name = "(.*)"\nversion = "(.*)"\nsource = ".*"\nchecksum = "(.*)"'
    return {(name, version): digest for name, version, digest in re.findall(entry, text)}


def linked(packages, nodes, root):
    """Crates that are reached from the program over its ordinary dependencies, with what each needs; macros run in the compiler."""
    macros = {key for key, one in packages.items() if any("proc-macro" in target["kind"] for target in one["targets"])}
    found, todo = {}, [root]
    while todo:
        one = todo.pop()
        if one in found:
            continue
        normal = [dep["pkg"] for dep in nodes[one]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        normal = [need for need in normal if need not in macros]
        found[one] = sorted(normal)
        todo += normal
    return found


def component(package, digests):
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    made = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package["license"]:
        # The older form of an expression.
        made["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if (name, version) in digests:
        made["hashes"] = [{"alg": "SHA-256", "content": digests[name, version]}]
    if package["repository"]:
        made["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return made


def main(path):
    found, digests = metadata(), checksums()
    packages = {package["id"]: package for package in found["packages"]}
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    root = next(key for key, package in packages.items() if package["name"] == PROGRAM)
    crates = linked(packages, nodes, root)
    parts = {key: component(packages[key], digests) for key in crates}
    program = {**parts.pop(root), "type": "application", "name": "sidecore"}
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    time = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    references = {key: program["bom-ref"] if key == root else parts[key]["bom-ref"] for key in crates}
    components = sorted(parts.values(), key=lambda one: one["bom-ref"])
    dependencies = [{"ref": references[key], "dependsOn": sorted(references[need] for need in needs)} for key, needs in crates.items()]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"timestamp": time, "component": program},
        "components": components,
        "dependencies": sorted(dependencies, key=lambda one: one["ref"]),
    }
    # Named by its contents, so that a second run gives the same name.
    bill["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill, sort_keys=True))}"
    with open(path, "w", encoding="utf-8") as file:
        json.dump(bill, file, indent=1, sort_keys=True)
        file.write("\n")
    print(path)


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
