/** The broker's HTTP API: what it tells by itself (Server-Sent Events), and what it is asked. */

import type { Action, BrokerDetail, Client, ClientDetail, Handoff, Me, Network } from "./contract";
import type { Model } from "./model.svelte";

const API = "/api/v1";
const RETRY_FIRST_MS = 1_000;
const RETRY_MAX_MS = 15_000;

export class ApiError extends Error {
  constructor(
    readonly status: number,
    text: string,
  ) {
    super(text);
  }
}

async function ask<T>(path: string, init: RequestInit = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(`${API}${path}`, { credentials: "same-origin", cache: "no-store", ...init });
  } catch {
    throw new ApiError(0, "The broker does not answer.");
  }
  if (answer.ok) return (await answer.json()) as T;
  const text = (await answer.text()).trim();
  throw new ApiError(answer.status, messageIn(text) || `The broker answered ${answer.status} ${answer.statusText}.`);
}

/** An error is one line of text, or JSON with an `error` or `text`. */
function messageIn(text: string): string {
  try {
    const found: unknown = JSON.parse(text);
    if (typeof found === "object" && found !== null) {
      const { text: said, error } = found as { text?: unknown; error?: unknown };
      return String(said ?? error ?? "");
    }
  } catch {
    // Not JSON: the line itself.
  }
  return text.startsWith("<") ? "" : text.slice(0, 300);
}

function post<T>(path: string, body: unknown): Promise<T> {
  return ask<T>(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

export const askMe = (): Promise<Me> => ask("/me");
export const askClient = (id: string): Promise<ClientDetail> => ask(`/clients/${encodeURIComponent(id)}`);
export const askBroker = (id: string): Promise<BrokerDetail> => ask(`/brokers/${encodeURIComponent(id)}`);
export const searchClients = (text: string): Promise<{ clients: Client[]; total: number }> =>
  ask(`/clients?search=${encodeURIComponent(text)}&limit=20`);
export const login = (user: string, password: string): Promise<unknown> => post("/login", { user, password });
export const logout = (): Promise<unknown> => post("/logout", {});
export const act = (
  action: Action,
  body: { broker?: string; client?: string; to?: string },
): Promise<{ done: boolean; text: string }> => post(`/actions/${action}`, body);

/** Follows the broker's events, and comes back when the connection is lost. */
export class Live {
  isConnected = $state(false);
  needsLogin = $state(false);
  me = $state.raw<Me>({ user: null, may_operate: false, login_needed: false, pseudonyms: false });
  /** When the last event came, by `Date.now()`. */
  heard_ms = $state(Date.now());
  problem = $state("");

  private events: EventSource | null = null;
  private retry_ms = RETRY_FIRST_MS;
  private timer = 0;
  private isFirst = true;

  constructor(private readonly model: Model) {}

  async start(): Promise<void> {
    window.clearTimeout(this.timer);
    try {
      this.me = await askMe();
      this.needsLogin = this.me.login_needed;
      this.problem = "";
    } catch (error) {
      this.needsLogin = error instanceof ApiError && error.status === 401;
      if (!this.needsLogin) return this.fail(error instanceof Error ? error.message : String(error));
    }
    if (!this.needsLogin) this.follow();
  }

  stop(): void {
    window.clearTimeout(this.timer);
    this.events?.close();
    this.events = null;
    this.isConnected = false;
  }

  private follow(): void {
    this.stop();
    const events = new EventSource(`${API}/events`);
    this.events = events;
    this.isFirst = true;
    const on = <T>(kind: string, take: (data: T) => void): void =>
      events.addEventListener(kind, (event) => {
        this.heard_ms = Date.now();
        this.isConnected = true;
        this.problem = "";
        this.retry_ms = RETRY_FIRST_MS;
        take(JSON.parse(event.data as string) as T);
      });
    on<Network>("network", (network) => this.model.takeNetwork(network));
    on<{ clients: Client[]; gone: string[] }>("clients", ({ clients, gone }) => {
      // The first one after a connection holds every client.
      if (this.isFirst) this.model.clients.clear();
      this.isFirst = false;
      this.model.takeClients(clients, gone);
    });
    on<{ handoffs: Handoff[] }>("handoffs", ({ handoffs }) => this.model.takeHandoffs(handoffs, performance.now()));
    events.onerror = () => this.fail("The connection to the broker is lost.");
  }

  private fail(problem: string): void {
    this.stop();
    this.problem = problem;
    this.timer = window.setTimeout(() => void this.start(), this.retry_ms);
    this.retry_ms = Math.min(2 * this.retry_ms, RETRY_MAX_MS);
  }
}
