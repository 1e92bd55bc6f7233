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
const SPREAD_ROUNDS = 80;
/** The rounds take time with the square of the brokers. */
const SPREAD_MAX = 150;

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

/** Move brokers until distances are close to the hops between them (stress majorization): long trees use the room. */
function spreadOut(places: Map<string, Point>, neighbours: Map<string, string[]>): Map<string, Point> {
  const ids = [...places.keys()];
  if (ids.length < 3 || ids.length > SPREAD_MAX) return places;
  const hops = ids.map((id) => {
    const parents = reached(id, neighbours);
    const far = new Map<string, number>();
    for (const [one, parent] of parents) far.set(one, parent === null ? 0 : far.get(parent)! + 1);
    return ids.map((other) => far.get(other)!);
  });
  let now = ids.map((id) => places.get(id)!);
  for (let round = 0; round < SPREAD_ROUNDS; round += 1)
    now = now.map((at, i) => {
      let [x, y, weights] = [0, 0, 0];
      now.forEach((other, j) => {
        if (i === j) return;
        const wanted = hops[i]![j]!;
        const [dx, dy] = [at.x - other.x, at.y - other.y];
        const pull = wanted / Math.max(Math.hypot(dx, dy), 1e-9);
        const weight = 1 / (wanted * wanted);
        x += weight * (other.x + pull * dx);
        y += weight * (other.y + pull * dy);
        weights += weight;
      });
      return { x: x / weights, y: y / weights };
    });
  return new Map(ids.map((id, index) => [id, now[index]!]));
}

/** Turned so that it is widest from left to right, as screens are. */
function lyingDown(places: Map<string, Point>): Map<string, Point> {
  const all = [...places.values()];
  const mean = (of: (place: Point) => number): number => all.reduce((sum, place) => sum + of(place), 0) / all.length;
  const [cx, cy] = [mean((place) => place.x), mean((place) => place.y)];
  const xx = mean(({ x }) => (x - cx) ** 2);
  const yy = mean(({ y }) => (y - cy) ** 2);
  const xy = mean(({ x, y }) => (x - cx) * (y - cy));
  const turn = -0.5 * Math.atan2(2 * xy, xx - yy);
  const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
  return new Map([...places].map(([id, { x, y }]) => [id, { x: (x - cx) * cos - (y - cy) * sin, y: (x - cx) * sin + (y - cy) * cos }]));
}

/** Each tree around its middle: rings by hops, angles by how many leaves are behind, then spread out; trees side by side. */
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
    const radial = new Map([...polar].map(([one, { angle, ring }]) => [one, { x: ring * Math.cos(angle), y: ring * Math.sin(angle) }]));
    const tree = lyingDown(spreadOut(radial, neighbours));
    const first = Math.min(...[...tree.values()].map((place) => place.x));
    for (const [one, { x, y }] of tree) places.set(one, { x: left + x - first, y });
    left += Math.max(...[...tree.values()].map((place) => place.x)) - first + 1.5;
  }
  return places;
}

/** The n-th seat around a broker: a sunflower, dense and without rows. */
export function seat(index: number, distance: number, inner: number): Point {
  const radius = Math.sqrt(inner * inner + index * distance * distance);
  const angle = index * 2.399963229728653;
  return { x: radius * Math.cos(angle), y: radius * Math.sin(angle) };
}
