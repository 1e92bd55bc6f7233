/** The network as it is shown, whoever tells of it: a broker (live.ts) or a file (replay.svelte.ts). */

import type { Alert, Broker, Client, Figures, Handoff, Link, Network } from "./contract";
import { neighboursOf } from "./layout";

const HISTORY_MAX = 900;
const HANDOFFS_MAX = 2_000;
const LISTED_MAX = 100;
/** Handoffs come in batches: within one they are shown as far apart as they happened, up to this. */
const SPREAD_MS = 500;

/** One handoff on the screen; `shown_ms` is when the page learned of it. */
export interface Shown extends Handoff {
  shown_ms: number;
}

/** Columns of the charts: time, then one value or gap for each series. */
export interface History {
  time: number[];
  received: (number | null)[];
  delivered: (number | null)[];
  latency50: (number | null)[];
  latency99: (number | null)[];
  handoff50: (number | null)[];
  handoff99: (number | null)[];
  handoffs: (number | null)[];
  queued: (number | null)[];
}

export function emptyHistory(): History {
  return { time: [], received: [], delivered: [], latency50: [], latency99: [], handoff50: [], handoff99: [], handoffs: [], queued: [] };
}

export class Model {
  servedBy = $state("");
  time = $state(0);
  brokers = $state.raw<Broker[]>([]);
  links = $state.raw<Link[]>([]);
  figures = $state.raw<Figures>({});
  alerts = $state.raw<Alert[]>([]);
  history = $state.raw<History>(emptyHistory());
  /** Handoffs for the list, newest first. */
  latest = $state.raw<Handoff[]>([]);
  /** Rises with every change of clients; the map itself is not reactive, because it may hold thousands. */
  clientsVersion = $state(0);
  isComplete = $state(false);

  readonly clients = new Map<string, Client>();
  handoffs: Shown[] = [];

  brokerById = $derived(new Map(this.brokers.map((broker) => [broker.id, broker])));
  neighbours = $derived(neighboursOf(this.links));

  takeNetwork(network: Network): void {
    this.servedBy = network.served_by;
    this.time = network.time;
    this.brokers = network.brokers;
    this.links = network.links;
    this.figures = network.figures;
    this.alerts = network.alerts;
    this.isComplete = true;
    this.remember(network.time, network.figures, network.brokers);
  }

  takeClients(changed: Client[], gone: string[]): void {
    for (const client of changed) this.clients.set(client.id, client);
    for (const id of gone) this.clients.delete(id);
    if (changed.length || gone.length) this.clientsVersion += 1;
  }

  takeHandoffs(handoffs: Handoff[], now_ms: number): void {
    const newest = handoffs.reduce((latest, one) => Math.max(latest, one.at), 0);
    for (const handoff of handoffs) {
      const before_ms = Math.min(1000 * (newest - handoff.at), SPREAD_MS);
      this.handoffs.push({ ...handoff, shown_ms: now_ms - before_ms });
    }
    if (this.handoffs.length > HANDOFFS_MAX) this.handoffs.splice(0, this.handoffs.length - HANDOFFS_MAX);
    if (handoffs.length) this.latest = [...handoffs].reverse().concat(this.latest).slice(0, LISTED_MAX);
  }

  clear(): void {
    this.clients.clear();
    this.handoffs = [];
    this.latest = [];
    this.history = emptyHistory();
    this.clientsVersion += 1;
  }

  /** Clients whose session is at a broker, in the order of their names. */
  clientsAt(broker: string): Client[] {
    const found = [...this.clients.values()].filter((client) => client.broker === broker);
    return found.sort((one, other) => (one.id < other.id ? -1 : 1));
  }

  private remember(time: number, figures: Figures, brokers: Broker[]): void {
    const before = this.history;
    if (before.time.length && time <= before.time.at(-1)!) return;
    const latency = figures.latency_ms ?? worst(brokers);
    const add = <T>(values: T[], value: T): T[] => [...values.slice(1 - HISTORY_MAX), value];
    this.history = {
      time: add(before.time, time),
      received: add(before.received, figures.received_per_s ?? null),
      delivered: add(before.delivered, figures.delivered_per_s ?? null),
      latency50: add(before.latency50, latency?.p50 ?? null),
      latency99: add(before.latency99, latency?.p99 ?? null),
      handoff50: add(before.handoff50, figures.handoff_ms?.p50 ?? null),
      handoff99: add(before.handoff99, figures.handoff_ms?.p99 ?? null),
      handoffs: add(before.handoffs, figures.handoffs_per_s ?? null),
      queued: add(before.queued, brokers.reduce((sum, broker) => sum + (broker.queued ?? 0), 0)),
    };
  }
}

/** Percentiles of brokers cannot be added up: those of the slowest broker are shown. */
function worst(brokers: Broker[]): { p50: number; p99: number } | null {
  const known = brokers.flatMap((broker) => (broker.latency_ms ? [broker.latency_ms] : []));
  return known.reduce<{ p50: number; p99: number } | null>(
    (most, one) => (most === null || one.p99 > most.p99 ? one : most),
    null,
  );
}
