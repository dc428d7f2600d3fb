"""A headless Chromium that reaches only the servers of a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

CHROMIUM = shutil.which("chromium")
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)

# Text against the nearest background that is not transparent, by WCAG 2.1.
CONTRAST = """
() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((c) => { c /= 255; return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = channels(getComputedStyle(node).backgroundColor);
      if (a > 0.5) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const worst = [];
  for (const node of document.querySelectorAll("body *")) {
    const text = [...node.childNodes].some((each) => each.nodeType === 3 && each.textContent.trim());
    if (!text || !node.checkVisibility() || node.closest("svg, .skip, noscript, script")) continue;
    const [one, other] = [luminance(channels(getComputedStyle(node).color)), luminance(behind(node))].sort((x, y) => y - x);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) worst.push(`${node.tagName} ${node.className} ${node.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return worst;
}
"""
UNNAMED = """
() => [...document.querySelectorAll("button, select, input, a, svg[tabindex], [role=region], [role=img]")]
  .filter((each) => !(each.textContent.trim() || each.labels?.length || each.ariaLabel ||
                      document.getElementById(each.getAttribute("aria-labelledby"))?.textContent.trim()))
  .map((each) => each.outerHTML.slice(0, 80))
"""


@contextmanager
def browser(*flags: str) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*_FLAGS, *flags])
        try:
            yield chromium
        finally:
            chromium.close()
