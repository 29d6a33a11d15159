# `nix run github:sidecore/sidecore?dir=packaging/nix -- doctor`, or the package of this checkout.
{
  description = "Mounts, attaches and serves compressed disk images; phylogenies and a TCP stack on dedicated cores";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forEach = nixpkgs.lib.genAttrs systems;
    in
    {
      packages = forEach (system: {
        default = nixpkgs.legacyPackages.${system}.callPackage ./package.nix { };
      });
      apps = forEach (system: {
        default = {
          type = "app";
          program = "${self.packages.${system}.default}/bin/sidecore";
        };
      });
    };
}
