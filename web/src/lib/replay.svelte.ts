/** A `*.roamview` file: gzip'd JSON lines made from an event log by `roamcast view`, played into a model. */

import type { Alert, Broker, Client, ClientDetail, Figures, Handoff, Link, Move } from "./contract";
import { emptyHistory, type History, type Model } from "./model.svelte";
import { clock, count, milliseconds, plural } from "./words";

const VERSION_MAX = 1;
const MOVES_SHOWN = 20;
/** A jump of more buckets than this shows the handoffs of the last one only. */
const JUMP_MAX = 20;

interface Header {
  format: string;
  version: number;
  name: string;
  start: number;
  end: number;
  brokers: { id: string; lat: number | null; lon: number | null }[];
  links: [string, string][];
  rows: number;
  totals: Figures & { handoffs?: number };
}

type ClientRow = [index: number, place: number, queued: number, lost?: number];
type HandoffRow = [client: number, from: number, to: number, offset_s: number, duration_ms: number, moved: number];

interface Bucket {
  t: number;
  key?: boolean;
  clients?: ClientRow[];
  handoffs?: HandoffRow[];
  figures: Figures;
  links?: [number, number | boolean][];
  brokers?: [number, number | boolean][];
}

export interface Listed {
  file: string;
  name: string;
}

export class ReplayError extends Error {}

export class Replay {
  position = $state(0);
  isPlaying = $state(false);
  speed = $state(1);
  header = $state.raw<Header | null>(null);
  loaded = $state(0);
  /** Clients that have missed something by now. */
  losers = $state(0);
  length = $derived(this.header ? Math.max(this.header.end - this.header.start, 0.001) : 1);

  private buckets: Bucket[] = [];
  private names: string[] = [];
  private states: Client[] = [];
  private up = { brokers: [] as boolean[], links: [] as boolean[] };
  private moves = new Map<number, HandoffRow[]>();
  private applied = -1;
  private request = 0;
  private last_ms = 0;

  constructor(private readonly model: Model) {}

  async open(stream: ReadableStream<Uint8Array>): Promise<void> {
    this.close();
    const plain = stream.pipeThrough(new DecompressionStream("gzip") as unknown as TransformStream<Uint8Array, Uint8Array>);
    try {
      await this.readLines(plain);
    } catch (error) {
      throw error instanceof ReplayError ? error : new ReplayError("This is no replay: a file that `roamcast view` wrote is needed.");
    }
    if (!this.header || !this.buckets.length) throw new ReplayError("The replay is empty: its log has no rows.");
    this.model.clear();
    this.model.servedBy = "";
    this.model.isComplete = true;
    this.model.history = this.historyOf(this.header);
    this.seek(0);
  }

  close(): void {
    this.pause();
    this.header = null;
    this.buckets = [];
    this.names = [];
    this.moves.clear();
    this.applied = -1;
  }

  play(): void {
    if (this.position >= this.length) this.seek(0);
    this.isPlaying = true;
    this.last_ms = performance.now();
    this.request = requestAnimationFrame((now) => this.tick(now));
  }

  pause(): void {
    this.isPlaying = false;
    cancelAnimationFrame(this.request);
  }

  /** Show the network as it was this many seconds after the start. */
  seek(position: number): void {
    this.position = Math.max(0, Math.min(position, this.length));
    this.show();
  }

  /** What the log tells of a client up to now, as the API would say it. */
  detail(id: string): ClientDetail | null {
    const client = this.model.clients.get(id);
    if (!client || !this.header) return null;
    const { start, brokers } = this.header;
    const rows = (this.moves.get(this.names.indexOf(id)) ?? []).filter(([, , , offset]) => offset <= this.position);
    const moves: Move[] = rows.slice(-MOVES_SHOWN).reverse().map(([, from, to, offset, duration_ms]) => ({
      at: start + offset,
      from: brokers[from]?.id ?? null,
      to: brokers[to]?.id ?? "?",
      duration_ms,
    }));
    return { ...client, moves, text: tell(client, moves, rows.length) };
  }

  private tick(now: number): void {
    if (!this.isPlaying) return;
    this.position = Math.min(this.position + ((now - this.last_ms) / 1000) * this.speed, this.length);
    this.last_ms = now;
    this.show();
    if (this.position >= this.length) this.pause();
    else this.request = requestAnimationFrame((next) => this.tick(next));
  }

  // --- reading ---

  private async readLines(stream: ReadableStream<Uint8Array>): Promise<void> {
    const reader = stream.pipeThrough(new TextDecoderStream() as unknown as TransformStream<Uint8Array, string>).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      const lines = (rest + (value ?? "")).split("\n");
      rest = done ? "" : lines.pop()!;
      for (const line of lines) if (line) this.takeLine(JSON.parse(line) as Record<string, unknown>);
      if (done) return;
    }
  }

  private takeLine(line: Record<string, unknown>): void {
    if (!this.header) {
      const header = line as unknown as Header;
      if (header.format !== "roamview") throw new ReplayError("This is no replay: a file that `roamcast view` wrote is needed.");
      if (header.version > VERSION_MAX) throw new ReplayError(`This replay has version ${header.version}; this page reads up to ${VERSION_MAX}.`);
      this.header = header;
      return;
    }
    if (Array.isArray(line.names)) {
      this.names.push(...(line.names as string[]));
      return;
    }
    const bucket = line as unknown as Bucket;
    this.buckets.push(bucket);
    for (const handoff of bucket.handoffs ?? []) {
      const known = this.moves.get(handoff[0]);
      if (known) known.push(handoff);
      else this.moves.set(handoff[0], [handoff]);
    }
    this.loaded = this.buckets.length;
  }

  private historyOf(header: Header): History {
    const history = emptyHistory();
    for (const { t, figures } of this.buckets) {
      history.time.push(header.start + t);
      history.received.push(figures.received_per_s ?? null);
      history.delivered.push(figures.delivered_per_s ?? null);
      history.latency50.push(figures.latency_ms?.p50 ?? null);
      history.latency99.push(figures.latency_ms?.p99 ?? null);
      history.handoff50.push(figures.handoff_ms?.p50 ?? null);
      history.handoff99.push(figures.handoff_ms?.p99 ?? null);
      history.handoffs.push(figures.handoffs_per_s ?? null);
    }
    return history;
  }

  // --- showing ---

  private show(): void {
    const wanted = this.bucketAt(this.position);
    if (wanted === this.applied) return;
    const header = this.header!;
    const isJump = wanted < this.applied || wanted > this.applied + JUMP_MAX;
    const key = this.keyBefore(wanted);
    const first = wanted < this.applied || key > this.applied ? key : this.applied + 1;
    if (first === 0) this.forget(header);
    for (let index = first; index <= wanted; index += 1) this.apply(this.buckets[index]!);
    this.takeHandoffs(isJump ? wanted : first, wanted);
    this.applied = wanted;
    this.publish(header, this.buckets[wanted]!);
  }

  private bucketAt(position: number): number {
    let [low, high] = [0, this.buckets.length - 1];
    while (low < high) {
      const middle = Math.ceil((low + high) / 2);
      if (this.buckets[middle]!.t <= position) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  private keyBefore(index: number): number {
    for (let at = index; at > 0; at -= 1) if (this.buckets[at]!.key) return at;
    return 0;
  }

  private forget(header: Header): void {
    this.states = [];
    this.model.clients.clear();
    this.up = { brokers: header.brokers.map(() => true), links: header.links.map(() => true) };
  }

  private apply(bucket: Bucket): void {
    for (const [index, place, queued, lost] of bucket.clients ?? []) {
      const id = this.names[index] ?? String(index);
      // -1 is nowhere; below that, away with the session at broker -place - 2.
      const broker = place >= 0 ? place : place < -1 ? -place - 2 : -1;
      const state: Client = { id, broker: this.header!.brokers[broker]?.id ?? null, attached: place >= 0, queued, lost: lost ?? 0 };
      this.states[index] = state;
      this.model.clients.set(id, state);
    }
    for (const [index, isUp] of bucket.links ?? []) this.up.links[index] = Boolean(isUp);
    for (const [index, isUp] of bucket.brokers ?? []) this.up.brokers[index] = Boolean(isUp);
  }

  private takeHandoffs(first: number, last: number): void {
    const header = this.header!;
    const found: Handoff[] = [];
    for (let index = first; index <= last; index += 1)
      for (const [client, from, to, offset, duration_ms, moved] of this.buckets[index]!.handoffs ?? [])
        found.push({
          client: this.names[client] ?? String(client),
          from: header.brokers[from]?.id ?? "?",
          to: header.brokers[to]?.id ?? "?",
          at: header.start + offset,
          duration_ms,
          moved,
        });
    this.model.takeHandoffs(found, performance.now());
    if (last < this.applied) this.model.latest = found.reverse();
  }

  private alertsOf(brokers: Broker[], links: Link[], figures: Figures): Alert[] {
    const down = new Set(brokers.flatMap((one) => (one.up ? [] : [one.id])));
    const alerts: Alert[] = [];
    brokers.forEach(({ id, up }, index) => {
      if (!up) alerts.push({ level: "error", kind: "broker_down", text: `Broker ${id} is down`, since: this.lastChange((bucket) => bucket.brokers, index) });
    });
    links.forEach(({ a, b, up }, index) => {
      if (!up && !down.has(a) && !down.has(b))
        alerts.push({ level: "warning", kind: "link_down", text: `The link ${a} – ${b} is down`, since: this.lastChange((bucket) => bucket.links, index) });
    });
    if (figures.lost) {
      const first = this.buckets.find((bucket) => bucket.figures.lost);
      const text = `${plural(figures.lost, "notification")} never reached ${plural(this.losers, "client")}`;
      alerts.push({ level: "error", kind: "lost", text, since: this.header!.start + (first?.t ?? 0) });
    }
    return alerts;
  }

  /** When a broker or a link came into the state that is shown. Keyframes repeat states and are no changes. */
  private lastChange(rows: (bucket: Bucket) => [number, number | boolean][] | undefined, index: number): number {
    let found = 0;
    for (const bucket of this.buckets) {
      if (bucket.t > this.position) break;
      if (!bucket.key && rows(bucket)?.some(([changed]) => changed === index)) found = bucket.t;
    }
    return this.header!.start + found;
  }

  private publish(header: Header, bucket: Bucket): void {
    let losers = 0;
    const perBroker = new Map<string, { attached: number; sessions: number; queued: number }>();
    for (const client of this.model.clients.values()) {
      losers += Number((client.lost ?? 0) > 0);
      if (client.broker === null) continue;
      const at = perBroker.get(client.broker) ?? { attached: 0, sessions: 0, queued: 0 };
      at.attached += Number(client.attached);
      at.sessions += 1;
      at.queued += client.queued;
      perBroker.set(client.broker, at);
    }
    const brokers: Broker[] = header.brokers.map((one, index) => ({
      ...one,
      up: this.up.brokers[index] ?? true,
      ...(perBroker.get(one.id) ?? { attached: 0, sessions: 0, queued: 0 }),
    }));
    const links: Link[] = header.links.map(([a, b], index) => ({ a, b, up: this.up.links[index] ?? true }));
    const time = header.start + bucket.t;
    this.model.time = time;
    this.model.brokers = brokers;
    this.model.links = links;
    this.model.figures = bucket.figures;
    this.losers = losers;
    this.model.alerts = this.alertsOf(brokers, links, bucket.figures);
    this.model.clientsVersion += 1;
  }
}

function tell(client: Client, moves: Move[], total: number): string[] {
  const where = client.broker === null ? "Nowhere: it has not attached yet." : client.attached ? `Attached to ${client.broker}.` : `Away; the session is at ${client.broker}.`;
  const last = moves[0];
  const said = [where];
  if (last) said.push(`Last handoff at ${clock(last.at, true)}: from ${last.from ?? "?"} to ${last.to} in ${milliseconds(last.duration_ms)} (${plural(total, "handoff")} so far).`);
  if (client.queued) said.push(`${plural(client.queued, "notification")} waiting.`);
  if (client.lost) said.push(`${count(client.lost)} published so far never ${client.lost === 1 ? "reaches" : "reach"} it.`);
  return said;
}

/** The replays that `roamcast view` offers; none where a broker serves the page. */
export async function offeredReplays(): Promise<Listed[]> {
  try {
    const answer = await fetch("/replays.json", { cache: "no-store" });
    const isJson = answer.headers.get("Content-Type")?.startsWith("application/json") ?? false;
    if (!answer.ok || !isJson) return [];
    return ((await answer.json()) as { replays: Listed[] }).replays;
  } catch {
    return [];
  }
}
