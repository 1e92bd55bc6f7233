/** Where brokers are drawn: on the earth (Web Mercator), or as a tree around its middle. */

export interface Point {
  x: number;
  y: number;
}

interface Placed {
  id: string;
  lat?: number | null;
  lon?: number | null;
}

const LATITUDE_MAX = 85;

/** The earth as a square of side 1. */
export function mercator(lat: number, lon: number): Point {
  const phi = (Math.max(-LATITUDE_MAX, Math.min(LATITUDE_MAX, lat)) * Math.PI) / 180;
  return { x: (lon + 180) / 360, y: 0.5 - Math.log(Math.tan(Math.PI / 4 + phi / 2)) / (2 * Math.PI) };
}

/** Metres on the ground that one unit of the square stands for, at this y. */
export function metresPerUnit(y: number): number {
  const phi = 2 * Math.atan(Math.exp((0.5 - y) * 2 * Math.PI)) - Math.PI / 2;
  return 40_075_016.7 * Math.cos(phi);
}

export function hasPosition(one: Placed): one is Placed & { lat: number; lon: number } {
  return typeof one.lat === "number" && typeof one.lon === "number";
}

/** Brokers without a position are put beside a neighbour that has one. */
export function onEarth(brokers: Placed[], neighbours: Map<string, string[]>): Map<string, Point> {
  const places = new Map<string, Point>();
  for (const one of brokers) if (hasPosition(one)) places.set(one.id, mercator(one.lat, one.lon));
  const known = [...places.values()];
  const xs = known.map((place) => place.x);
  const ys = known.map((place) => place.y);
  const step = Math.max(Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys), 1e-6) / 6;
  brokers.forEach((one, index) => {
    if (places.has(one.id)) return;
    const near = (neighbours.get(one.id) ?? []).map((id) => places.get(id)).find((place) => place);
    const angle = index * 2.4;
    const base = near ?? known[0] ?? { x: 0.5, y: 0.5 };
    places.set(one.id, { x: base.x + step * Math.cos(angle), y: base.y + step * Math.sin(angle) });
  });
  return places;
}

export function neighboursOf(links: { a: string; b: string }[]): Map<string, string[]> {
  const neighbours = new Map<string, string[]>();
  for (const { a, b } of links) {
    neighbours.set(a, [...(neighbours.get(a) ?? []), b]);
    neighbours.set(b, [...(neighbours.get(b) ?? []), a]);
  }
  return neighbours;
}

/** The brokers reached from `start`, with who is next to each on the way back, nearest first. */
function reached(start: string, neighbours: Map<string, string[]>): Map<string, string | null> {
  const parents = new Map<string, string | null>([[start, null]]);
  for (const id of parents.keys())
    for (const next of neighbours.get(id) ?? []) if (!parents.has(next)) parents.set(next, id);
  return parents;
}

/** The middle of the longest way through the tree. */
function middleOf(any: string, neighbours: Map<string, string[]>): string {
  const oneEnd = [...reached(any, neighbours).keys()].at(-1)!;
  const parents = reached(oneEnd, neighbours);
  const way: string[] = [];
  for (let at: string | null = [...parents.keys()].at(-1)!; at !== null; at = parents.get(at) ?? null) way.push(at);
  return way[Math.floor(way.length / 2)]!;
}

/** Each tree around its middle, rings by hops, angles by how many leaves are behind; trees side by side. */
export function asTrees(ids: string[], neighbours: Map<string, string[]>): Map<string, Point> {
  const places = new Map<string, Point>();
  let left = 0;
  for (const id of [...ids].sort()) {
    if (places.has(id)) continue;
    const root = middleOf(id, neighbours);
    const parents = reached(root, neighbours);
    const children = new Map<string, string[]>();
    for (const [child, parent] of parents) if (parent !== null) children.set(parent, [...(children.get(parent) ?? []), child]);
    for (const found of children.values()) found.sort();
    const leaves = new Map<string, number>();
    for (const one of [...parents.keys()].reverse())
      leaves.set(one, Math.max((children.get(one) ?? []).reduce((sum, child) => sum + leaves.get(child)!, 0), 1));
    const polar = new Map<string, { angle: number; ring: number }>();
    const spread = (one: string, ring: number, from: number, to: number): void => {
      polar.set(one, { angle: (from + to) / 2, ring });
      let at = from;
      for (const child of children.get(one) ?? []) {
        const share = ((to - from) * leaves.get(child)!) / leaves.get(one)!;
        spread(child, ring + 1, at, at + share);
        at += share;
      }
    };
    // Two ends of a line lie left and right of its middle.
    spread(root, 0, Math.PI / 2, (5 * Math.PI) / 2);
    const rings = Math.max(...[...polar.values()].map((one) => one.ring));
    const centre = left + Math.max(rings, 0.5);
    for (const [one, { angle, ring }] of polar)
      places.set(one, { x: centre + ring * Math.cos(angle), y: 0.72 * ring * Math.sin(angle) });
    left = centre + Math.max(rings, 0.5) + 1;
  }
  return places;
}

/** The n-th seat around a broker: a sunflower, dense and without rows. */
export function seat(index: number, distance: number, inner: number): Point {
  const radius = Math.sqrt(inner * inner + index * distance * distance);
  const angle = index * 2.399963229728653;
  return { x: radius * Math.cos(angle), y: radius * Math.sin(angle) };
}
