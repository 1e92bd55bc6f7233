import { createHash } from "node:crypto";
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { svelte, vitePreprocess } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = join(here, "..", "src", "roamcast", "web");

function filesUnder(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) =>
    entry.name === "node_modules" || entry.name === ".svelte-kit"
      ? []
      : entry.isDirectory()
        ? filesUnder(join(folder, entry.name))
        : [join(folder, entry.name)],
  );
}

/** Name to SHA-256 of every file in a folder, in the order of the names. */
function digests(folder: string): Record<string, string> {
  const named = filesUnder(folder).map((file) => [relative(folder, file).split(sep).join("/"), file] as const);
  return Object.fromEntries(
    named
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([name, file]) => [name, createHash("sha256").update(readFileSync(file)).digest("hex")]),
  );
}

/** Write what the bundle was built from, so that a test without Node can tell whether it is up to date. */
function writeDigests(): Plugin {
  const file = join(out, "build.json");
  return {
    name: "write-digests",
    apply: "build",
    buildStart: () => rmSync(file, { force: true }),
    closeBundle: () => {
      if (!existsSync(join(out, "index.html"))) return;
      const digest = { sources: digests(here), bundle: digests(out) };
      writeFileSync(file, JSON.stringify(digest, null, 1) + "\n");
    },
  };
}

export default defineConfig({
  plugins: [svelte({ preprocess: vitePreprocess() }), writeDigests()],
  build: {
    outDir: out,
    emptyOutDir: true,
    // A data: URL would need an exception in the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: true,
  },
});
