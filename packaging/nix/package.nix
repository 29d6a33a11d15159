# The program, its pages and completions, and the libraries that programs load by `offload run`, `net run` and `spe`.
{
  lib,
  rustPlatform,
  installShellFiles,
  pkg-config,
}:
let
  root = ../..;
  manifest = builtins.fromTOML (builtins.readFile (root + "/Cargo.toml"));
in
rustPlatform.buildRustPackage {
  pname = "sidecore";
  inherit (manifest.workspace.package) version;

  src = lib.cleanSource root;
  cargoLock.lockFile = root + "/Cargo.lock";

  # bindgen, for ublk, and C parts of codecs.
  nativeBuildInputs = [
    installShellFiles
    pkg-config
    rustPlatform.bindgenHook
  ];

  # Peers are for measuring; the program is built without.
  buildNoDefaultFeatures = true;
  cargoBuildFlags = [
    "--package=sidecore-cli"
    "--package=sidecore-zlib"
    "--package=sidecore-net-preload"
    "--package=sidecore-spe"
    "--package=sidecore-beagle"
    "--package=sidecore-fi"
    "--package=sidecore-verbs"
  ];

  # The tests mount, attach and make network interfaces as root, which a build may not.
  doCheck = false;

  # The same bytes in every build.
  env.CONST_RANDOM_SEED = "sidecore";

  # Where the program looks for what it preloads.
  postInstall = ''
    mkdir -p $out/lib/sidecore
    mv $out/lib/libsidecore_z.so $out/lib/libsidecore_net_preload.so $out/lib/sidecore/
    mv $out/lib/libspe2.so $out/lib/sidecore/libspe2.so.2
    mv $out/lib/libhmsbeagle.so $out/lib/sidecore/libhmsbeagle.so.1
    mv $out/lib/libsidecore_fi.so $out/lib/sidecore/libsidecore-fi.so
    mv $out/lib/libsidecore_verbs.so $out/lib/sidecore/libsidecore-verbs.so
    $out/bin/sidecore man man1
    installManPage man1/*.1
    installShellCompletion --cmd sidecore \
      --bash <($out/bin/sidecore completions bash) \
      --fish <($out/bin/sidecore completions fish) \
      --zsh <($out/bin/sidecore completions zsh)
  '';

  meta = {
    description = "Mounts, attaches and serves compressed disk images; phylogenies and a TCP stack on dedicated cores";
    homepage = manifest.workspace.package.repository;
    license = with lib.licenses; [
      mit
      asl20
    ];
    mainProgram = "sidecore";
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
  };
}
