/** Light or dark: as the system has it, unless the reader chose. */

const KEY = "roamcast-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

function chosen(): string | null {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // Storage may be forbidden.
  }
}

export class Theme {
  isDark = $state(false);

  constructor() {
    this.apply();
    system.addEventListener("change", () => this.apply());
  }

  toggle(): void {
    try {
      localStorage.setItem(KEY, this.isDark ? "light" : "dark");
    } catch {
      // The choice holds for this page only.
    }
    this.set(!this.isDark);
  }

  private apply(): void {
    this.set((chosen() ?? (system.matches ? "dark" : "light")) === "dark");
  }

  private set(isDark: boolean): void {
    this.isDark = isDark;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
  }
}
